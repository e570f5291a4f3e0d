// What the compiler does not say: values nobody uses, promises nobody waits for, `any` that spreads.
import js from "@eslint/js";
import typescript from "typescript-eslint";
import shownText from "./lint/shown_text.mjs";

export default typescript.config(
  { ignores: ["node_modules"] },
  js.configs.recommended,
  ...typescript.configs.recommendedTypeChecked.map((config) => ({ ...config, files: ["**/*.ts"] })),
  {
    files: ["**/*.ts"],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      // Indices of columns are in range by construction; `!` says so where the compiler cannot see it.
      "@typescript-eslint/no-non-null-assertion": "off",
    },
  },
  {
    files: ["src/*.ts"],
    // The words themselves, types that others write, keys of the address, and the columns of the page's data.
    ignores: ["src/chinese.ts", "src/words.ts", "src/schema.ts", "src/state.ts"],
    plugins: { viewer: { rules: { "shown-text": shownText } } },
    rules: { "viewer/shown-text": "error" },
  },
  { files: ["*.mjs", "lint/*.mjs"], languageOptions: { globals: { process: "readonly", console: "readonly" } } },
);
