// Programs and command lines to copy. The key is never in them.

function py(value) {
  return JSON.stringify(value); // a JSON string is a Python string
}

/** A word for a POSIX shell. */
export function shell(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** How to go on with training from saved state. */
export function resumeLines(tinkerPath, url) {
  return {
    python: [
      "import tinkex  # TINKER_API_KEY holds the key",
      "",
      `service = tinkex.ServiceClient(base_url=${py(url)})`,
      "training = service.create_training_client_from_state_with_optimizer(",
      `    ${py(tinkerPath)}`,
      ")",
    ].join("\n"),
    cli: `export TINKER_BASE_URL=${shell(url)}\ntinkex train data.jsonl --model-path ${shell(tinkerPath)}`,
  };
}

/** The same request with the `openai` package; without `stream` it scores a prompt. */
export function pythonRequest(url, isChat, body) {
  const call = isChat ? "client.chat.completions.create" : "client.completions.create";
  const lines = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value)},`);
  const shown = isChat
    ? '        print(chunk.choices[0].delta.content or "", end="", flush=True)'
    : '        print(chunk.choices[0].text, end="", flush=True)';
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${py(`${url}/v1`)}, api_key=os.environ["TINKER_API_KEY"])`,
    `${body.stream ? "stream" : "answer"} = ${call}(`, ...lines, ")",
    ...(body.stream ? ["for chunk in stream:", "    if chunk.choices:", shown] : [
      "found = answer.choices[0].logprobs",
      "for token, logprob in zip(found.tokens, found.token_logprobs):",
      "    print(repr(token), logprob)",
    ]),
  ].join("\n");
}

/** The same request with curl. */
export function curlRequest(url, isChat, body) {
  const where = `${url}/v1/${isChat ? "chat/completions" : "completions"}`;
  return [
    `curl -N ${shell(where)} \\`,
    '  -H "Authorization: Bearer $TINKER_API_KEY" \\',
    '  -H "Content-Type: application/json" \\',
    `  -d ${shell(JSON.stringify(body, null, 2))}`,
  ].join("\n");
}

function literal(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, inner]) => `${py(name)}: ${literal(inner)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
