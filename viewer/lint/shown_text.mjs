// A rule: what people read goes through `t`, whose catalogue has it in every language. A literal is text unless what it
// stands in says otherwise: a type that lists it, `as const`, a comparison, a name or place of the DOM, a style.
import ts from "typescript";

/** Attributes that are read or read aloud; all others are for the browser. */
const READ = new Set(["title", "aria-label", "aria-description", "aria-valuetext", "placeholder", "alt"]);
/** Functions whose texts are names, */
const NAMING = new Set(
  `add addEventListener closest contains contrast createElementNS fetch get getAll getAttribute getContext
   getElementById has hasAttribute includes indexOf match matchMedia nameOf of parse querySelector querySelectorAll
   remove removeAttribute replaceAll request split endsWith startsWith t text toggled toLocaleString
   unpackText values base`.split(/\s+/),
);
/** and those of which only the first is. */
const NAMING_FIRST = new Set(["element", "replace", "shape"]);
/** Things whose functions take names, or names first. */
const NAMED = /(^|\.)(classList|pane)$/;
/** Properties of elements and drawings that hold styles and addresses, */
const STYLED = new Set(
  `background boxShadow className cssText cursor display download fillStyle font height href strokeStyle textAlign
   textBaseline theme width`.split(/\s+/),
);
/** and keys of objects that do. */
const STYLED_KEYS = new Set(["class", "role", "type", "id", "text-anchor", "font-family", "fill", "stroke"]);
/** Colours, options of commands, styles, words of the search ("rank:"), units, types of files, the name of the program. */
const NO_WORDS = new RegExp(
  [
    "^#[0-9a-f]{3,8}$",
    "^--[a-z-]+ ?$",
    "sans-serif|gradient\\(|^light-dark|^inset |^transparent$|^\0px$|^-?\\d+deg$",
    '^[a-z]+:["\0]',
    "^[\\d.\0]+ ?[nmµ]?s$",
    "^\\w+/[\\w+]+$",
    "^bubblescope",
  ].join("|"),
);
const PASSED_ON = new Set(["??", "||", "+"]);

export default {
  meta: {
    type: "problem",
    schema: [],
    messages: { bare: "people may read {{text}}: write it through t(), or say `as const` if it is a name" },
  },
  create(context) {
    const { program, esTreeNodeToTSNodeMap } = context.sourceCode.parserServices;
    const checker = program.getTypeChecker();
    const look = (node) => {
      const literal = esTreeNodeToTSNodeMap.get(node);
      if (!worded(literal) || isName(literal, checker)) return;
      context.report({ node, messageId: "bare", data: { text: literal.getText() } });
    };
    return { "Literal[raw=/^[\"']/]": look, TemplateLiteral: look };
  },
};

/** Whether a literal has words in it. */
export function worded(node) {
  const text = ts.isTemplateExpression(node)
    ? [node.head.text, ...node.templateSpans.map(({ literal }) => literal.text)].join("\0")
    : node.text;
  return /[A-Za-z]{2,}/.test(text) && !NO_WORDS.test(text);
}

/** Whether what a literal stands in takes names, not text. */
export function isName(node, checker) {
  if (listed(checker.getContextualType(node))) return true;
  const [value, holder] = holderOf(node);
  if (ts.isAsExpression(holder)) return holder.type.getText() === "const";
  if (listed(checker.getContextualType(value))) return true;
  if (ts.isImportDeclaration(holder) || ts.isExportDeclaration(holder) || ts.isCaseClause(holder)) return true;
  if (ts.isElementAccessExpression(holder) || ts.isLiteralTypeNode(holder)) return true;
  if (ts.isBinaryExpression(holder)) return comparing(holder) || styling(holder, value);
  if (ts.isCallExpression(holder)) return naming(holder, value);
  if (ts.isNewExpression(holder)) return holder.expression.getText() !== "QueryError"; // which is shown
  return ts.isPropertyAssignment(holder) && (holder.name === node || keyed(holder));
}

/** What a literal becomes a part of, and as which value: it may be one of two, or a part of a text. */
function holderOf(node) {
  let [value, holder] = [node, node.parent];
  while (passes(holder, value)) [value, holder] = [holder, holder.parent];
  return [value, holder];
}

function passes(holder, value) {
  if (ts.isConditionalExpression(holder)) return holder.condition !== value;
  if (ts.isBinaryExpression(holder)) return PASSED_ON.has(holder.operatorToken.getText());
  if (ts.isArrayLiteralExpression(holder)) return isList(holder) && isListed(holder.parent);
  return (
    ts.isParenthesizedExpression(holder) ||
    ts.isTemplateSpan(holder) ||
    ts.isTemplateExpression(holder) ||
    ts.isSpreadElement(holder) ||
    ts.isNonNullExpression(holder)
  );
}

/** Whether an array holds names alone, */
function isList({ elements }) {
  return elements.every((one) => (ts.isArrayLiteralExpression(one) ? isList(one) : ts.isLiteralExpression(one)));
}

/** and is or belongs to a list of them. */
function isListed(holder) {
  return (
    ts.isAsExpression(holder) || (ts.isArrayLiteralExpression(holder) && isList(holder) && isListed(holder.parent))
  );
}

/** Whether a type lists the texts that it takes. */
function listed(type) {
  const flags = ts.TypeFlags.StringLiteral | ts.TypeFlags.TemplateLiteral | ts.TypeFlags.Index;
  return type !== undefined && (type.isUnion() ? type.types : [type]).some((one) => one.flags & flags);
}

function comparing({ operatorToken }) {
  return /^([!=]==|in)$/.test(operatorToken.getText());
}

function styling({ operatorToken, left, right }, value) {
  if (operatorToken.kind !== ts.SyntaxKind.EqualsToken || right !== value) return false;
  return ts.isPropertyAccessExpression(left) && STYLED.has(left.name.text);
}

function naming({ expression, arguments: given }, value) {
  const method = ts.isPropertyAccessExpression(expression);
  const called = method ? expression.name.text : expression.getText();
  if (method && NAMED.test(expression.expression.getText())) return called === "toggle" || given[0] === value;
  if (called === "setAttribute") return given[0] === value || !READ.has(given[0].text);
  return NAMING.has(called) || (NAMING_FIRST.has(called) && given[0] === value);
}

/** Whether a property is no text: by its key, or as an attribute of an element. */
function keyed({ name, parent }) {
  const key = name.text ?? name.getText();
  if (STYLED_KEYS.has(key)) return true;
  let maker = parent.parent;
  while (ts.isConditionalExpression(maker)) maker = maker.parent;
  const attributes = ts.isCallExpression(maker) && /^(element|shape)$/.test(maker.expression.getText());
  return attributes && !READ.has(key);
}
