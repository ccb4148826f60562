// Requests to the server: one JSON object in, one out, with the token and this page's name in headers.

import { token } from "./token.js";

const tab = Array.from(crypto.getRandomValues(new Uint32Array(4)), (number) => number.toString(36)).join("");

export class Problem extends Error {}
export class Superseded extends Error {}

// The server's answer; throws Problem with its sentence, an AbortError when the request was cancelled, Superseded
// when a newer request of this page replaced it.
export async function ask(name, fields = {}, signal = undefined) {
  let answer;
  try {
    answer = await fetch(`/api/${name}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-armillary-token": token(), "x-armillary-tab": tab },
      body: JSON.stringify(fields),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The viewer does not answer: was it stopped? Start `armillary view` again.");
  }
  if (answer.status === 409) throw new Superseded();
  if (!answer.ok) throw new Problem((await answer.text()) || `The viewer answered ${answer.status}.`);
  return unpacked(await answer.json());
}

const KINDS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };

// Arrays come as float32 bytes in base64 with their shape; in figures as Plotly packs them.
function unpacked(value) {
  if (Array.isArray(value)) return value.length && typeof value[0] === "object" ? value.map(unpacked) : value;
  if (value === null || typeof value !== "object") return value;
  if (typeof value.f4 === "string" && Array.isArray(value.shape)) return numbers(value);
  if (typeof value.bdata === "string") return plotlys(value);
  for (const name of Object.keys(value)) value[name] = unpacked(value[name]);
  return value;
}

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

function numbers({ f4, shape }) {
  const values = new Float32Array(bytesOf(f4));
  values.shape = shape;
  return values;
}

function plotlys({ bdata, dtype, shape }) {
  const bytes = bytesOf(bdata);
  const flat = KINDS[dtype] ? new KINDS[dtype](bytes) : Float64Array.from(new BigInt64Array(bytes), Number);
  const [n, m] = String(shape ?? "").split(",").map(Number);
  return m ? Array.from({ length: n }, (_, i) => flat.subarray(i * m, (i + 1) * m)) : flat;
}

// One request at a time of each kind: a new one cancels the one before, so that late answers never overwrite.
export class Line {
  #current = null;

  async ask(name, fields) {
    this.#current?.abort();
    const mine = (this.#current = new AbortController());
    try {
      const answer = await ask(name, fields, mine.signal);
      return this.#current === mine ? answer : null;
    } catch (error) {
      if (error.name === "AbortError" || error instanceof Superseded || this.#current !== mine) return null;
      throw error;
    }
  }

  drop() {
    this.#current?.abort();
    this.#current = null;
  }
}
