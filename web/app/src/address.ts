// Checks a model's URL while it is typed. The page's Content-Security-Policy allows https: and the page's own server: other addresses can
// never load, so the field says so at once and offers what works.

export type AddressCheck =
    | { ok: true; url: string }
    /** `instead`: an address that works and is probably what was meant. */
    | { ok: false; why: string; instead?: string };

/** `origin` is that of this page. null: nothing was typed. */
export function checkAddress(typed: string, origin: string): AddressCheck | null {
    const text = typed.trim();
    if (text === '') return null;
    if (/^hf:/i.test(text)) return checkHuggingFace(text);
    if (/^https?:\/{0,2}$/i.test(text)) return { ok: false, why: 'The URL is incomplete.' };
    if (/^[a-z][a-z\d+.-]*:\/\//i.test(text)) return checkUrl(text, origin);
    if (/^(?:[a-z]:)?[\\/~.]/i.test(text)) return { ok: false, why: 'This looks like a path on your machine. Use "File" to choose it.' };
    if (/^[\w-]+(?:\.[\w-]+)+(?::\d+)?\/\S+$/.test(text)) return { ok: false, why: 'The URL needs https:// at the start.', instead: `https://${text}` };
    if (/^[\w.-]+\/[\w.-]+\/\S+$/.test(text)) return { ok: false, why: 'For a file on Hugging Face, add hf: at the start.', instead: `hf:${text}` };
    return { ok: false, why: 'Enter a URL that starts with https://, or hf:owner/repo/file.gguf.' };
}

function checkHuggingFace(text: string): AddressCheck {
    return /^hf:[^\s/]+\/[^\s/]+\/\S+$/.test(text) ? { ok: true, url: text } : { ok: false, why: 'Enter hf:owner/repo/file.gguf.' };
}

function checkUrl(text: string, origin: string): AddressCheck {
    const url = URL.canParse(text) ? new URL(text) : null;
    if (!url || /\s/.test(text)) return { ok: false, why: 'This is not a valid URL.' };
    if (url.protocol === 'file:') return { ok: false, why: 'This is a file on your machine. Use "File" to choose it.' };
    if (url.origin === origin) return { ok: true, url: text };
    if (url.protocol === 'http:') {
        const why = 'This page can load https:// URLs only, not http://.';
        if (isThisMachine(url.hostname)) return { ok: false, why: `${why} Use "File" to choose the file itself.` };
        return { ok: false, why: `${why} Try https://, or download the file and choose it under "File".`, instead: text.replace(/^http:/i, 'https:') };
    }
    if (url.protocol !== 'https:') return { ok: false, why: `This page can load https:// URLs only, not ${url.protocol}//.` };
    // A link to the page about a file, copied from the browser.
    const page = /^https:\/\/huggingface\.co\/([^/]+\/[^/]+)\/blob\/(.+)$/i.exec(text);
    if (page) {
        const instead = `https://huggingface.co/${page[1]}/resolve/${page[2]!.split('?')[0]}`;
        return { ok: false, why: 'This is the web page about the file, not the file.', instead };
    }
    return { ok: true, url: text };
}

const isThisMachine = (host: string): boolean => /^(?:localhost|127(?:\.\d+){3}|\[::1\]|0\.0\.0\.0)$/.test(host);
