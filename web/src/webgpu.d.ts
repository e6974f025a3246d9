/* Dawn for Node is optional: it need not be installed to build the package. node.ts names the part of it that we use. */
declare module 'webgpu';
