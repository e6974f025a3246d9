// Starts the app: theme, conversations, model.

import { render } from 'preact';
import { App } from './app.tsx';
import { openChats, report } from './chat.ts';
import { restoreHeld } from './drafts.ts';
import { loadAtStart, lookAtServer } from './models.ts';
import { hasFiles } from './parts/drop_files.ts';
import { keepNow } from './sessions.ts';
import { applyTheme, settings } from './settings.ts';
import './style/base.css';
import './style/layout.css';
import './style/chat.css';
import './style/canvas.css';
import './style/pages.css';
import './style/teach.css';

applyTheme();
settings.watch(applyTheme);
restoreHeld();
render(<App />, document.getElementById('app')!);
void openChats();
void loadAtStart();
void lookAtServer();

// A hidden tab may be closed without notice: save what the session holds.
document.addEventListener('visibilitychange', () => {
    if (document.visibilityState === 'hidden') void keepNow();
});

// A file that is dropped where nothing takes it would replace the app.
for (const type of ['dragover', 'drop'] as const) {
    window.addEventListener(type, (event) => {
        if (event.defaultPrevented || !hasFiles(event)) return;
        event.preventDefault();
        event.dataTransfer!.dropEffect = 'none';
    });
}

if ('serviceWorker' in navigator && import.meta.env.PROD) {
    const updating = navigator.serviceWorker.controller !== null;
    navigator.serviceWorker.addEventListener('controllerchange', () => {
        if (updating) report('The app has been updated. Reload the page to use the new version.');
    });
    void navigator.serviceWorker.register('./sw.js').catch((error: unknown) => console.warn('no offline use:', error));
}
