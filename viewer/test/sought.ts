// A query from what is written to what it finds.

import type { Data, Head } from "../src/data";
import { find, type Matches } from "../src/matching";
import { asked } from "../src/search";

export function sought(query: string, head: Head, data: Data): Matches {
  return find(asked(query, head), head, data);
}
