// Files that the user saves and opens.

export function saveFile(name: string, text: string): void {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
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
