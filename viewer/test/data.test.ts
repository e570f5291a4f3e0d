import { describe, expect, test } from "vitest";
import {
  assemble,
  coordinates,
  cut,
  decode,
  extentAt,
  firstEndingAfter,
  rowOf,
  running,
  times,
  unpackText,
  type Head,
} from "../src/data";
import { made, random, row, whole } from "./made";

type Column = Head["columns"]["tasks"][number];

const ARRAYS = { u8: Uint8Array, i16: Int16Array, i32: Int32Array, u32: Uint32Array, f64: Float64Array };

const padded = (bytes: number[]) => [...bytes, ...new Array<number>((8 - (bytes.length % 8)) % 8).fill(0)];

/** Columns one after the other, each padded to eight bytes, as the page is given them. */
function packed(columns: Record<string, [type: Column["type"], values: number[]]>): {
  buffer: ArrayBuffer;
  columns: Column[];
} {
  const bytes = Object.values(columns).flatMap(([type, values]) => {
    const numbers = values.map((value) => [...new Uint8Array(ARRAYS[type].of(value).buffer)]);
    if (ARRAYS[type].BYTES_PER_ELEMENT < 4) return padded(numbers.flat());
    return (numbers[0] ?? []).flatMap((_, at) => padded(numbers.map((one) => one[at]!)));
  });
  const named = Object.entries(columns).map(([name, [type, values]]) => ({ name, type, length: values.length }));
  return { buffer: Uint8Array.from(bytes).buffer, columns: named };
}

test("cut finds every column of every type behind the others", () => {
  const given: Parameters<typeof packed>[0] = {
    a: ["u8", [1, 2, 255]],
    b: ["f64", [0.5, -1e300]],
    none: ["i16", []],
    c: ["i16", [-32768, 0, 32767]],
    d: ["u32", [4294967295]],
    e: ["i32", [-1, 5, -2147483648]],
    many: ["i32", Array.from({ length: 21 }, (_, at) => ((at % 2 ? -1 : 1) * 7 ** at) % 2147483648)],
    far: ["f64", Array.from({ length: 9 }, (_, at) => 2 ** 53 - 7 ** at)],
    last: ["f64", []],
  };
  const { buffer, columns } = packed(given);
  const found = cut(buffer, columns);
  for (const [name, [type, values]] of Object.entries(given)) {
    expect(found[name]).toBeInstanceOf(ARRAYS[type]);
    expect([...found[name]!]).toEqual(values);
  }
});

test("times adds up the gaps between starts anew in every row", () => {
  const rows = [
    { rank: 0, from: 0, to: 2 },
    { rank: 0, from: 2, to: 2 },
    { rank: 1, from: 2, to: 4 },
  ];
  const { start, end } = times(Uint32Array.of(5, 10, 7, 0), Uint32Array.of(4, 1, 2, 3), rows);
  expect([...start]).toEqual([5, 15, 7, 7]);
  expect([...end]).toEqual([9, 16, 9, 10]);
});

test("times exceed 32 bits without loss", () => {
  const gap = new Uint32Array(3).fill(4294967295);
  const { start } = times(gap, gap, [{ rank: 0, from: 0, to: 3 }]);
  expect([...start]).toEqual([4294967295, 2 * 4294967295, 3 * 4294967295]);
});

async function deflated(buffer: ArrayBuffer): Promise<string> {
  const stream = new Blob([buffer]).stream().pipeThrough(new CompressionStream("deflate"));
  return btoa(String.fromCharCode(...new Uint8Array(await new Response(stream).arrayBuffer())));
}

const EXTENTS = {
  rows: [{ rank: 0, lane: "compute" as const, row: 0, from: 0, to: 3 }],
  gaps: [{ rank: 0, from: 0, to: 2 }],
  samples: [{ rank: 0, counter: 0, from: 0, to: 2 }],
  kernel_rows: [0, 1].map((stream) => ({ rank: 0, device: 0, stream, row: 0, from: 2 * stream, to: 2 + stream })),
};
const TABLES = {
  tasks: {
    gap: ["u8", [1, 10, 10]],
    length: ["u8", [5, 5, 5]],
    kind: ["u8", [0, 1, 2]],
    pair_chunk: ["i16", [-1, -1, 1]],
  },
  gaps: { gap: ["u8", [6, 10]], length: ["u8", [5, 5]], task_step: ["i16", [1, 1]], cause: ["u8", [0, 1]] },
  links: { source_step: ["u8", [0, 1, 0]], reach: ["i16", [1, 1, -1]] },
  phases: {},
  cells: {},
  samples: { gap: ["u8", [2, 3]], value: ["f64", [0.5, 1.5]] },
  kernels: { gap: ["u8", [3, 4, 9]], length: ["u8", [4, 4, 2]], cut: ["u8", [0, 1, 0]], use: ["u8", [0, 1, 2]] },
  communication: {
    task_step: ["u8", [1, 0, 1]],
    of: ["u8", [0, 1, 0]],
    exposed: ["u8", [3, 0, 2]],
    hidden: ["u8", [0, 4, 1]],
  },
} satisfies Record<string, Parameters<typeof packed>[0]>;

test("a page is read alike by browsers that know base64 and by others", async () => {
  const given = packed({ a: ["u8", [1, 2, 250]], b: ["i32", [-7, 70000]] });
  const text = await deflated(given.buffer);
  const others = await unpackText(text, given.columns);
  const asked: string[] = [];
  const fromBase64 = (base64: string) => {
    asked.push(base64);
    return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  };
  Object.assign(Uint8Array, { fromBase64 });
  try {
    expect(await unpackText(text, given.columns)).toEqual(others);
  } finally {
    Reflect.deleteProperty(Uint8Array, "fromBase64");
  }
  expect(asked).toEqual([text]);
  expect(others).toEqual({ a: Uint8Array.of(1, 2, 250), b: Int32Array.of(-7, 70000) });
});

test("the columns of a page become what is drawn", async () => {
  const tables = Object.fromEntries(Object.entries(TABLES).map(([name, columns]) => [name, packed(columns)]));
  const direct = assemble(
    EXTENTS,
    Object.fromEntries(
      Object.entries(tables).map(([name, table]) => [name, cut(table.buffer, table.columns)]),
    ) as Parameters<typeof assemble>[1],
  );
  expect([...direct.tasks.start]).toEqual([1, 11, 21]);
  expect([...direct.tasks.end]).toEqual([6, 16, 26]);
  expect([...direct.tasks.kind]).toEqual([0, 1, 2]);
  expect([...direct.tasks.pairChunk]).toEqual([-1, -1, 1]);
  expect([...direct.gaps.start]).toEqual([6, 16]);
  expect([...direct.gaps.task]).toEqual([1, 2]);
  expect([...direct.links.source]).toEqual([0, 1, 1]);
  expect([...direct.links.target]).toEqual([1, 2, 0]);
  expect([...direct.samples.time]).toEqual([2, 5]);
  expect([...direct.samples.value]).toEqual([0.5, 1.5]);
  expect([...direct.kernels.start]).toEqual([3, 7, 9]);
  expect([...direct.kernels.end]).toEqual([7, 11, 11]);
  expect([...direct.kernels.use]).toEqual([0, 1, 2]);
  expect([...direct.communication.task]).toEqual([1, 1, 2]);

  const { head } = made({
    head: {
      ...EXTENTS,
      columns: Object.fromEntries(
        Object.entries(tables).map(([name, { columns }]) => [name, columns]),
      ) as Head["columns"],
    },
  });
  const texts = new Map(
    await Promise.all(
      Object.entries(tables).map(async ([name, { buffer }]) => [name, await deflated(buffer)] as const),
    ),
  );
  expect(await decode(head, (name) => texts.get(name)!)).toEqual(direct);
});

test("a page that is damaged is refused", async () => {
  const { head } = made({});
  await expect(decode(head, () => "bm90IGRlZmxhdGVk")).rejects.toThrow();
});

describe("what is there at a time", () => {
  const { head, data } = made({
    rows: [
      { rank: 0, tasks: row(random(1), 40) },
      { rank: 1, tasks: row(random(2), 40) },
      { rank: 1, tasks: [] },
    ],
  });
  const { start, end } = data.tasks;

  test("firstEndingAfter is the first that ends later, or the end of the row", () => {
    for (const { from, to } of head.rows) {
      for (let time = -2; time < 500; time += 0.5) {
        let wanted = from;
        while (wanted < to && end[wanted]! <= time) wanted++;
        expect(firstEndingAfter(end, from, to, time)).toBe(wanted);
      }
    }
  });

  test("running counts the start of a task to it and its end not", () => {
    for (const extent of head.rows) {
      for (let time = -2; time < 500; time += 0.5) {
        const there = [...start.keys()].filter(
          (task) => task >= extent.from && task < extent.to && start[task]! <= time && time < end[task]!,
        );
        expect(there.length).toBeLessThanOrEqual(1);
        expect(running(data.tasks, extent, time)).toBe(there[0] ?? -1);
      }
    }
  });
});

test("extentAt and rowOf find the row of a task, past rows without any", () => {
  const next = random(5);
  const rows = Array.from({ length: 30 }, (_, rank) => ({
    rank,
    tasks: row(next, next() < 0.3 ? 0 : whole(next, 1, 5)),
  }));
  const { head, data } = made({ rows });
  for (let task = 0; task < data.tasks.kind.length; task++) {
    const wanted = head.rows.findIndex(({ from, to }) => from <= task && task < to);
    expect(extentAt(head.rows, task)).toBe(wanted);
    expect(rowOf(head, task)).toBe(head.rows[wanted]);
  }
});

test("a rank's coordinates are those that are known, in one order", () => {
  const none = { pp: null, dp: null, tp: null, cp: null, ep: null, etp: null, edp: null };
  expect(coordinates(none)).toBeNull();
  expect(coordinates({ ...none, ep: 2, pp: 0, edp: 1 })).toBe("pp 0, ep 2, edp 1");
  expect(coordinates({ ...none, etp: 1, cp: 0, tp: 3, dp: 4 })).toBe("dp 4, tp 3, cp 0, etp 1");
});
