// Takes a photo with the camera.

import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Dialog } from './dialog.tsx';

const REFUSALS: Record<string, string> = {
    NotAllowedError: 'Camera access is blocked. Allow it for this site in the browser.',
    NotFoundError: 'No camera was found.',
    NotReadableError: 'The camera cannot be opened. Another program may be using it.',
};

export function CameraDialog({ open, onClose, onPhoto }: { open: boolean; onClose: () => void; onPhoto: (photo: File) => void }): JSX.Element {
    return <Dialog open={open} title="Take a photo" onClose={onClose}><Camera onPhoto={onPhoto} /></Dialog>;
}

function Camera({ onPhoto }: { onPhoto: (photo: File) => void }): JSX.Element {
    const video = useRef<HTMLVideoElement>(null);
    const [problem, setProblem] = useState('');
    const [ready, setReady] = useState(false);
    useEffect(() => {
        let stream: MediaStream | null = null, shown = true;
        const end = (): void => stream?.getTracks().forEach((track) => track.stop());
        const begin = async (): Promise<void> => {
            if (!navigator.mediaDevices) throw new Error('This page cannot use a camera.');
            stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: 'environment', width: { ideal: 1920 } } });
            if (!shown) return end();
            video.current!.srcObject = stream;
        };
        begin().catch((error: Error) => setProblem(REFUSALS[error.name] ?? error.message));
        return () => {
            shown = false;
            end();
        };
    }, []);
    const take = (): void => {
        const { videoWidth: width, videoHeight: height } = video.current!;
        const canvas = Object.assign(document.createElement('canvas'), { width, height });
        canvas.getContext('2d')!.drawImage(video.current!, 0, 0);
        canvas.toBlob((blob) => blob && onPhoto(new File([blob], 'Photo.jpg', { type: blob.type })), 'image/jpeg', 0.92);
    };
    return (
        <>
            {problem !== '' ? <p class="box-note" role="alert">{problem}</p>
                : <video ref={video} class="camera" autoplay playsInline muted onLoadedData={() => setReady(true)} aria-label="What the camera sees" />}
            <div class="actions"><button type="button" class="button primary" disabled={!ready} onClick={take}>Take photo</button></div>
        </>
    );
}
