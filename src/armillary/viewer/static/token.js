// The server's token. It comes once in the address after '#', as the token or as a code to exchange for it, is removed
// from the address at once, and stored for this origin: reloads and other tabs have it, other ports of this machine do not.

const NAME = "armillary token";
let own = "";

export function token() {
  try {
    return localStorage.getItem(NAME) ?? own;
  } catch {
    return own; // storage is forbidden: only this page has it
  }
}

function keep(value) {
  own = value;
  try {
    localStorage.setItem(NAME, value);
  } catch {
    // as above
  }
}

// Take the token out of the address; returns whether there was one. `exchange` gives the token for a code; a code that was used
// before matters only where there is no token.
export async function enter(exchange) {
  const fields = new URLSearchParams(location.hash.slice(1));
  const [given, code] = [fields.get("token"), fields.get("code")];
  if (given === null && code === null) return false;
  fields.delete("token");
  fields.delete("code");
  const rest = fields.toString();
  history.replaceState(null, "", location.pathname + (rest ? `#${rest}` : ""));
  try {
    keep(given ?? (await exchange(code)));
  } catch (problem) {
    if (!token()) throw problem;
  }
  return true;
}
