// The app's icons: strokes on a 24 by 24 grid.

import type { JSX } from 'preact';

const PATHS = {
    plus: 'M12 5v14M5 12h14',
    camera: 'M4 8h4l2-3h4l2 3h4v11H4zM12 10a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7',
    microphone: 'M12 3a3 3 0 0 0-3 3v5a3 3 0 0 0 6 0V6a3 3 0 0 0-3-3M5 11a7 7 0 0 0 14 0M12 18v3',
    picture: 'M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.2v.1',
    film: 'M4 5h16v14H4zM8 5v14M16 5v14M4 9.7h4M4 14.3h4M16 9.7h4M16 14.3h4',
    wave: 'M4 10v4M8 7v10M12 4v16M16 8v8M20 10v4',
    send: 'M12 19V5M6 11l6-6 6 6',
    stop: 'M7 7h10v10H7z',
    copy: 'M9 9h10v11H9zM5 15V4h10',
    check: 'M5 12.5l4.5 4.5L19 7.5',
    edit: 'M4 20l1-4L16 5l3 3L8 19zM14 7l3 3',
    redo: 'M20 11a8 8 0 1 0-2.3 6.3M20 4v7h-7',
    trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
    search: 'M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13M15.5 15.5L20 20',
    menu: 'M4 7h16M4 12h16M4 17h16',
    close: 'M6 6l12 12M18 6L6 18',
    left: 'M14 6l-6 6 6 6',
    right: 'M10 6l6 6-6 6',
    down: 'M6 10l6 6 6-6',
    chip: 'M8 8h8v8H8zM5 5h14v14H5zM9 2v3M15 2v3M9 19v3M15 19v3M2 9h3M2 15h3M19 9h3M19 15h3',
    chart: 'M4 20h16M7 20v-7M12 20V5M17 20v-10',
    sliders: 'M4 7h9M17 7h3M15 5v4M4 17h3M11 17h9M9 15v4',
    info: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 11v5M12 7.8v.2',
    sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5',
    moon: 'M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z',
    auto: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 3v18M12 8h5.5M12 12h8M12 16h5.5',
    download: 'M12 4v12M7 11l5 5 5-5M5 20h14',
    folder: 'M3 6h6l2 2h10v11H3z',
    link: 'M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1',
    file: 'M6 3h8l4 4v14H6zM14 3v4h4',
    box: 'M4 8l8-4 8 4v8l-8 4-8-4zM4 8l8 4 8-4M12 12v8',
    server: 'M4 4h16v6H4zM4 14h16v6H4zM8 7v.1M8 17v.1',
    dots: 'M5.4 12a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0M11.4 12a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0M17.4 12a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0',
    bulb: 'M9.5 18h5M10.5 21h3M12 3a6 6 0 0 0-3.6 10.8c.7.6 1.1 1.3 1.1 2.2h5c0-.9.4-1.6 1.1-2.2A6 6 0 0 0 12 3',
    tool: 'M14 6a4 4 0 0 0 5 5l-8 8a2.1 2.1 0 0 1-3-3zM14 6l3-2 3 3-1 4',
    shield: 'M12 3l8 3v6c0 5-3.5 8-8 9-4.5-1-8-4-8-9V6zM8.5 12l2.5 2.5 4.5-5',
    keyboard: 'M3 6h18v12H3zM7 10v.1M11 10v.1M15 10v.1M8 14h8',
    cap: 'M12 5L2.5 9.5 12 14l9.5-4.5zM6 11.4V16c0 1.4 2.7 2.6 6 2.6s6-1.2 6-2.6v-4.6M21.5 9.5V15',
    pause: 'M8 6v12M16 6v12',
    play: 'M8 5l11 7-11 7z',
    layers: 'M12 4l8 4-8 4-8-4zM4 12l8 4 8-4M4 16l8 4 8-4',
    warn: 'M12 4l9 16H3zM12 10v5M12 17.6v.1',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18 }: { name: IconName; size?: number }): JSX.Element {
    return (
        <svg class="icon" viewBox="0 0 24 24" width={size} height={size} aria-hidden="true" focusable="false">
            <path d={PATHS[name]} />
        </svg>
    );
}

/** The gem. */
export function Logo({ size = 28 }: { size?: number }): JSX.Element {
    return (
        <svg class="logo" viewBox="0 0 64 64" width={size} height={size} aria-hidden="true" focusable="false">
            <path class="logo-body" d="M20 8h24l14 17-26 31L6 25z" />
            <path class="logo-top" d="M20 8h24l-7 17H27z" />
            <path class="logo-left" d="M20 8 6 25h21z" />
            <path class="logo-right" d="M44 8l14 17H37z" />
            <path class="logo-light" d="M27 25h10l-5 31z" />
            <path class="logo-side" d="M6 25h21l5 31z" />
        </svg>
    );
}
