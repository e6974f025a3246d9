// What went wrong, in words beside the button that was pressed.

import type { JSX } from 'preact';
import { Icon } from '../icons.tsx';

export const Problem = ({ words }: { words: string }): JSX.Element => <p class="fit fit-no" role="alert"><Icon name="warn" size={16} />{words}</p>;
