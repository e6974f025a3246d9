/* Short forms of addresses. */

import { GemmuleError } from '../core/errors.ts';

/** hf:owner/repo/file, or hf:owner/repo@revision/file, as the address of the file on Hugging Face; other addresses as they are. */
export function expandUrl(url: string): string {
    if (!url.startsWith('hf:')) return url;
    const found = /^hf:([^/@]+)\/([^/@]+)(?:@([^/]+))?\/(.+)$/.exec(url);
    if (!found) throw new GemmuleError('BadArgument', `'${url}': expected hf:owner/repo/file or hf:owner/repo@revision/file`);
    const [, owner, repo, revision = 'main', file] = found as unknown as [string, string, string, string | undefined, string];
    const path = [owner, repo, 'resolve', revision, ...file.split('/')];
    return `https://huggingface.co/${path.map(encodeURIComponent).join('/')}`;
}
