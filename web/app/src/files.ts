// Files that the user saves and opens.

export const saveFile = (name: string, text: string): void => saveBlob(name, new Blob([text], { type: 'application/json' }));

export function saveBlob(name: string, blob: Blob): void {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Asks for files; none where the user changes their mind. */
export function openFiles(accept: string, options: { folder?: boolean; several?: boolean } = {}): Promise<File[]> {
    return new Promise((resolve) => {
        const input = document.createElement('input');
        input.type = 'file';
        input.accept = accept;
        input.multiple = options.several ?? false;
        if (options.folder) input.webkitdirectory = true;
        input.onchange = () => resolve([...(input.files ?? [])]);
        input.oncancel = () => resolve([]);
        input.click();
    });
}

interface FilePicker {
    showOpenFilePicker?(options: { multiple: boolean; id: string }): Promise<FileSystemFileHandle[]>;
}
type AskableHandle = FileSystemFileHandle & Record<'queryPermission' | 'requestPermission', (how: { mode: 'read' }) => Promise<PermissionState>>;

/** Asks for files, with handles that open them again on a later visit where the browser gives some. */
export async function pickFiles(): Promise<{ files: File[]; handles: FileSystemFileHandle[] }> {
    const { showOpenFilePicker } = globalThis as FilePicker;
    if (!showOpenFilePicker) return { files: await openFiles('', { several: true }), handles: [] };
    const handles = await showOpenFilePicker({ multiple: true, id: 'gemmule-model' }).catch((error: DOMException) => {
        if (error.name === 'AbortError') return []; // the user changed their mind
        throw error;
    });
    return { files: await Promise.all(handles.map((handle) => handle.getFile())), handles };
}

/** The files of handles from an earlier visit; null without permission. To ask for it takes a click. */
export async function filesOf(handles: FileSystemFileHandle[], ask: boolean): Promise<File[] | null> {
    const files: File[] = [];
    for (const handle of handles as AskableHandle[]) {
        const permission = await (ask ? handle.requestPermission({ mode: 'read' }) : handle.queryPermission({ mode: 'read' }));
        if (permission !== 'granted') return null;
        files.push(await handle.getFile());
    }
    return files;
}
