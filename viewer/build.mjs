// Bundles the viewer into the Python package. The banner carries a hash of the sources, by which the
// project's tests know, without Node, that the committed bundle is of the committed sources.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync, copyFileSync } from "node:fs";
import { build } from "esbuild";

const target = "../src/bubblescope/render/html/bundle";
const hash = createHash("sha256");
for (const name of readdirSync("src").sort()) hash.update(readFileSync(`src/${name}`));
const banner = `/* bubblescope viewer, sources ${hash.digest("hex")} */\n`;

const { outputFiles, metafile } = await build({
  entryPoints: ["src/main.ts"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  write: false,
  metafile: true,
});
// What others wrote may be bundled, and then shipped, only with its licence beside the bundle.
const foreign = Object.keys(metafile.inputs).filter((name) => !name.startsWith("src/"));
if (foreign.length) throw new Error(`${foreign.join(", ")}: not ours; ship its licence and allow it here`);
writeFileSync(`${target}/bundle.js`, banner + outputFiles[0].text);
copyFileSync("src/style.css", `${target}/bundle.css`);
