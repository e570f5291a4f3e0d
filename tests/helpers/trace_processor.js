// Runs Perfetto's trace_processor.wasm under Node and passes its RPC messages through stdin and stdout.
// Its bundle expects to be a web worker, so this file makes the few globals that such a worker has.
"use strict";
const fs = require("fs");
const path = require("path");

const folder = process.argv[2];
const node = process;
const asset = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));

Object.assign(globalThis, {
  self: globalThis,
  WorkerGlobalScope: function WorkerGlobalScope() {},
  importScripts() {},
  location: { href: `file://${folder}/engine_bundle.js` },
  document: undefined,
  fetch: async (url) => new Response(asset(url), { headers: { "content-type": "application/wasm" } }),
  XMLHttpRequest: class {
    open(_method, url) { this.url = url; }
    send() {
      const bytes = asset(this.url);
      this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
      this.status = 200;
      this.readyState = 4;
      if (this.onload) this.onload();
    }
  },
});
console.log = console.error; // stdout belongs to the protocol

const port = { postMessage: (message) => fs.writeSync(1, message), onmessage: null };
const bundle = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
globalThis.process = undefined; // or the bundle takes this for Node and not for a worker
(0, eval)(bundle);
globalThis.process = node;
globalThis.onmessage({ data: port });

const waiting = [];
let ready = false;
const pass = (chunk) => port.onmessage({ data: new Uint8Array(chunk) });
node.stdin.on("data", (chunk) => (ready ? pass(chunk) : waiting.push(chunk)));
node.stdin.on("end", () => node.exit(0));
setTimeout(() => {
  ready = true;
  waiting.forEach(pass);
}, 600);
