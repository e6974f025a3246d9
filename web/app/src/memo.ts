// A component that renders again only when its properties differ. (preact/compat has one, but brings all of compat along.)

import { Component, type ComponentChild, type FunctionComponent, h } from 'preact';

export function memo<P extends object>(draw: (props: P) => ComponentChild, same: (a: P, b: P) => boolean): FunctionComponent<P> {
    const Inner = (props: P): ComponentChild => draw(props);
    class Memo extends Component<P> {
        override shouldComponentUpdate(next: Readonly<P>): boolean {
            return !same(this.props as P, next as P);
        }

        override render(): ComponentChild {
            return h(Inner as FunctionComponent<P>, this.props as P);
        }
    }
    return Memo as unknown as FunctionComponent<P>;
}
