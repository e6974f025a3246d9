import { Gemmule } from '../dist/index.js';

const [file, url, button, status, ask, prompt, answer] = ['file', 'url', 'load', 'status', 'ask', 'prompt', 'answer'].map((id) => document.getElementById(id));
const messages = [];
let engine = null;

async function load(source) {
    await engine?.unload();
    try {
        const onProgress = ({ phase, done, total }) => (status.textContent = `${phase} ${total ? Math.round((100 * done) / total) : 0} %`);
        engine = await Gemmule.load(source, { onProgress, fallback: 'wasm' });
        status.textContent = `${engine.info.name} on ${engine.info.device}`;
        ask.querySelector('button').disabled = false;
    } catch (error) {
        status.textContent = `${error.name}: ${error.message}`;
    }
}
file.onchange = () => load(file.files[0]);
button.onclick = () => load(url.value);
ask.onsubmit = async (event) => {
    event.preventDefault();
    messages.push({ role: 'user', content: prompt.value });
    answer.textContent = '';
    const stream = await engine.chat.completions.create({ messages, stream: true, max_tokens: 500 });
    for await (const chunk of stream) answer.textContent += chunk.choices[0]?.delta.content ?? '';
    messages.push({ role: 'assistant', content: answer.textContent });
};
