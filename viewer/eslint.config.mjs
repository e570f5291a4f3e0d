// What the compiler does not say: values nobody uses, promises nobody waits for, `any` that spreads.
import js from "@eslint/js";
import typescript from "typescript-eslint";

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
  { files: ["*.mjs"], languageOptions: { globals: { process: "readonly", console: "readonly" } } },
);
