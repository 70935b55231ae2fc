// The book's own Python in a worker: Pyodide's core, and a zip of the part of the book that needs no torch.
// The large files are stored compressed, so that every server sends the bytes that the button has named.
const plainFetch = self.fetch, COMPRESSED = /\.(wasm|zip)$/;
let fetched = 0;
self.fetch = async (address, ...given) => {
  const isCompressed = COMPRESSED.test(address);
  const answer = await plainFetch(isCompressed ? `${address}.gz` : address, ...given);
  const count = new TransformStream({
    transform(chunk, out) {
      fetched += chunk.length;
      postMessage({ fetched });
      out.enqueue(chunk);
    },
  });
  const body = answer.body.pipeThrough(count);
  const type = String(address).endsWith(".wasm") ? "application/wasm" : answer.headers.get("content-type");
  const plain = isCompressed ? body.pipeThrough(new DecompressionStream("gzip")) : body;
  return new Response(plain, { headers: { "content-type": type }, status: answer.status });
};

const ready = (async () => {
  const { loadPyodide } = await import("./live/pyodide.mjs");
  const python = await loadPyodide({ indexURL: new URL("./live/", import.meta.url).href });
  const zip = await (await fetch(new URL("./live/memkit.zip", import.meta.url))).arrayBuffer();
  python.unpackArchive(zip, "zip", { extractDir: "/book" });
  python.runPython("import sys; sys.path.insert(0, '/book')");
  return python.pyimport("page_host");
})();
ready.catch(() => {});  // each call that waits for it is told; before the first has come it is nobody's error

onmessage = async ({ data: { number, call, given } }) => {
  try {
    postMessage({ number, answer: JSON.parse((await ready)[call](...given)) });
  } catch (error) {
    postMessage({ number, error: String(error) });
  }
};
