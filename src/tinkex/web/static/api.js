// Requests to this server, with the key of the session. Every failure is an ApiError that says what
// to do; a refused key also ends the session.

import { session } from "./session.js";

const BASE = "/api/v1";

export class ApiError extends Error {
  constructor(status, message, { code = "", hint = "" } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.hint = hint;
  }

  /** Whether this server has no such route: an older one, or a part that is switched off. */
  get isMissingRoute() {
    return this.status === 405 || this.code === "no-such-route" || this.code === "wrong-method";
  }
}

/** The path of a run or checkpoint with its parts escaped. */
export function path(...parts) {
  return `/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

/** The path of a checkpoint by its `tinker://` path. */
export function checkpointPath(tinkerPath, ...rest) {
  const [run, kind, name] = tinkerPath.replace("tinker://", "").split("/");
  return path("training_runs", run, "checkpoints", kind, name, ...rest);
}

export function get(where, query = {}, options = {}) {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined));
  return json("GET", given.size ? `${where}?${given}` : where, options);
}

export function post(where, body = {}, options = {}) {
  return json("POST", where, { ...options, body });
}

export function put(where, body, options = {}) {
  return json("PUT", where, { ...options, body });
}

export function patch(where, body, options = {}) {
  return json("PATCH", where, { ...options, body });
}

export function remove(where, options = {}) {
  return json("DELETE", where, options);
}

async function json(method, where, { body, ...options }) {
  const response = await send(method, BASE + where, {
    ...options,
    headers: { "X-Api-Key": session.key, ...options.headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return response.json();
}

/** The successful response to a request; the caller gives headers and reads the body. */
export async function send(method, url, { headers = {}, ...options } = {}) {
  const typed = options.body === undefined ? headers : { "Content-Type": "application/json", ...headers };
  let response;
  try {
    response = await fetch(url, {
      method, headers: typed, cache: "no-store", credentials: "omit", ...options,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.", {
      code: "unreachable", hint: "Check that it is running. The page retries.",
    });
  }
  if (response.ok) return response;
  const error = await errorOf(response);
  if (response.status === 401 && error.code !== "not-an-operator" && session.key === usedKey(headers)) {
    window.dispatchEvent(new CustomEvent("tinkex:refused", { detail: error }));
  }
  throw error;
}

function usedKey(headers) {
  return headers["X-Api-Key"] ?? headers.Authorization?.replace("Bearer ", "");
}

async function errorOf(response) {
  let fields = {};
  try {
    fields = await response.json();
  } catch {
    // a proxy's answer, or a body that was cut off
  }
  const inner = fields.error ?? fields; // OpenAI's form, or ours
  const message = inner.message ?? inner.detail ?? `The server answered ${response.status}.`;
  return new ApiError(response.status, String(message), {
    code: inner.code ?? "", hint: inner.hint ?? "",
  });
}

/** All items of a paged list, up to `most`; `onPage` gets the items so far. */
export async function all(where, field, { query = {}, signal, most = 5000, onPage } = {}) {
  const found = [];
  const limit = 500;
  for (;;) {
    const page = await get(where, { ...query, limit, offset: found.length }, { signal });
    found.push(...page[field]);
    const total = page.cursor?.total_count ?? found.length;
    onPage?.(found, total);
    if (page[field].length === 0 || found.length >= Math.min(total, most)) return found;
  }
}
