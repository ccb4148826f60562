// Sums and softmaxes over square matrices (Float32Array, row after row; NaN where a key is not visible).

export const at = (matrix, n, i, j) => matrix[i * n + j];

// The attention that some terms of the logits make: softmax over the visible keys, with soft-cap, bias and sink.
export function attentionOf(terms, chosen, like, n, softcap, sink) {
  const products = chosen.filter((name) => name !== "bias").map((name) => terms[name]);
  const bias = chosen.includes("bias") ? terms.bias : null;
  const result = new Float32Array(n * n);
  const row = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    let top = sink ?? -Infinity;
    for (let j = 0; j < n; j++) {
      const place = i * n + j;
      if (Number.isNaN(like[place])) continue;
      let logit = 0;
      for (const term of products) logit += term[place];
      if (softcap !== null) logit = softcap * Math.tanh(logit / softcap);
      if (bias) logit += bias[place];
      row[j] = logit;
      if (logit > top) top = logit;
    }
    let total = sink === null ? 0 : Math.exp(sink - top);
    for (let j = 0; j < n; j++) if (!Number.isNaN(like[i * n + j])) total += row[j] = Math.exp(row[j] - top);
    for (let j = 0; j < n; j++) result[i * n + j] = Number.isNaN(like[i * n + j]) ? NaN : row[j] / total;
  }
  return result;
}

// The sum of some terms, each row minus its mean over the visible keys: softmax ignores what is constant along a row.
export function centeredSum(terms, like, n) {
  const result = new Float32Array(n * n).fill(NaN);
  for (let i = 0; i < n; i++) {
    let mean = 0;
    let count = 0;
    for (let j = 0; j < n; j++) {
      const place = i * n + j;
      if (Number.isNaN(like[place])) continue;
      let value = 0;
      for (const term of terms) value += term[place];
      result[place] = value;
      mean += value;
      count++;
    }
    mean /= Math.max(count, 1);
    for (let j = 0; j < n; j++) result[i * n + j] -= mean;
  }
  return result;
}

// From tokens to words: keys of a word added up, its queries averaged; blank where no pair is visible.
export function joined(matrix, n, ofToken, count) {
  const sums = new Float64Array(count * count);
  const seen = new Uint8Array(count * count);
  const sizes = new Float64Array(count);
  for (const word of ofToken) sizes[word]++;
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++) {
      const value = matrix[i * n + j];
      if (Number.isNaN(value)) continue;
      const place = ofToken[i] * count + ofToken[j];
      sums[place] += value;
      seen[place] = 1;
    }
  return Float32Array.from(sums, (sum, place) => (seen[place] ? sum / sizes[Math.floor(place / count)] : NaN));
}

// The mean over the visible pairs of two words: for logits, which do not add up.
export function averaged(matrix, n, ofToken, count) {
  const sums = new Float64Array(count * count);
  const pairs = new Float64Array(count * count);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++) {
      const value = matrix[i * n + j];
      if (Number.isNaN(value)) continue;
      sums[ofToken[i] * count + ofToken[j]] += value;
      pairs[ofToken[i] * count + ofToken[j]]++;
    }
  return Float32Array.from(sums, (sum, place) => (pairs[place] ? sum / pairs[place] : NaN));
}

// Half the summed difference of two attentions, mean over rows: 0 where they agree, 1 where they share no key.
export function distance(a, b, n) {
  let total = 0;
  for (let place = 0; place < n * n; place++) {
    const difference = a[place] - b[place];
    if (!Number.isNaN(difference)) total += Math.abs(difference);
  }
  return total / (2 * n);
}

export function difference(a, b) {
  return a.map((value, place) => value - b[place]);
}

// Where colors end: the largest size of the values outside some columns, but for the last hundredth (of a sample).
export function limit(values, columns = 0, without = new Set()) {
  const step = Math.max(1, Math.floor(values.length / 4096) | 1);
  const sizes = [];
  for (let place = 0; place < values.length; place += step)
    if (!Number.isNaN(values[place]) && !(columns && without.has(place % columns))) sizes.push(Math.abs(values[place]));
  if (!sizes.length) return 1;
  const sorted = Float32Array.from(sizes).sort();
  return sorted[Math.floor(0.99 * (sorted.length - 1))] || sorted[sorted.length - 1] || 1;
}

// Rows for Plotly.
export function rows(values, n, m = n) {
  return Array.from({ length: n }, (_, i) => values.subarray(i * m, (i + 1) * m));
}

// A number as a reader wants it: four significant digits, small ones in powers of ten.
export function formatted(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
}
