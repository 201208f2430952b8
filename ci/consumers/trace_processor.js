// Perfetto's trace processor, as its web page runs it: requests from stdin, responses to stdout.
// Usage: node trace_processor.js FOLDER, that of engine_bundle.js and trace_processor*.wasm.
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const folder = process.argv[2];
const input = fs.readFileSync(0);

// A worker of a browser, as far as the engine looks: it refuses to run where it finds node.
const worker = { location: { href: 'worker' }, performance };
const readFile = (name) => {
    const bytes = fs.readFileSync(path.join(folder, path.basename(String(name))));
    return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
};
const fetchFile = async (name) => ({ ok: true, arrayBuffer: async () => readFile(name) });
class FileRequest {
    open(method, name) { this.name = name; }
    send() { this.response = readFile(this.name); }
}
const quiet = { log() {}, warn() {}, error(text) { process.stderr.write(text + '\n'); } };
const names = {
    self: worker, WorkerGlobalScope: Object, importScripts() {}, fetch: fetchFile,
    XMLHttpRequest: FileRequest, console: quiet,
    WebAssembly, TextDecoder, TextEncoder, performance, setTimeout, clearTimeout, URL, crypto,
};
// Errors and arrays of the code outside, which the engine looks at by their types.
const context = vm.createContext({ ...names, Uint8Array, ArrayBuffer, TypeError });
vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), context);

const port = {
    onmessage: null,
    postMessage(data) { fs.writeSync(1, data); },
};
worker.onmessage({ data: port });
// The engine is ready once its code is compiled; the last request is answered before this ends.
const send = (tries) => {
    try {
        port.onmessage({ data: new Uint8Array(input) });
    } catch (error) {
        if (tries === 0 || !/undefined|null/.test(String(error))) throw error;
        setTimeout(send, 100, tries - 1);
    }
};
setTimeout(send, 500, 300);
