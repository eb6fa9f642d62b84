// From what was typed to a request of OpenAI's form, and from its answers to tokens.

/** The request of a mode. `turns` are the messages so far. */
export function requestOf(mode, model, { turns, text, system, params }) {
  const { alternatives = 5, ...sampling } = params;
  if (mode === "chat") {
    const messages = [
      ...(system.trim() ? [{ role: "system", content: system.trim() }] : []),
      ...turns, { role: "user", content: text },
    ];
    return { isChat: true, body: { model, messages, ...sampling, logprobs: true, top_logprobs: alternatives, stream: true } };
  }
  if (mode === "completion") {
    return { isChat: false, body: { model, prompt: text, ...sampling, logprobs: alternatives, stream: true } };
  }
  return { isChat: false, body: { model, prompt: text, max_tokens: 0, echo: true, logprobs: alternatives } };
}

/** The tokens in one choice of an answer: { text, logprob, top: [{ text, logprob }] }. */
export function tokensOf(choice, isChat) {
  if (isChat) {
    const content = choice.logprobs?.content;
    if (!content) return plain(choice.delta?.content ?? choice.message?.content);
    return content.map(({ token, logprob, top_logprobs: top }) => ({
      text: token, logprob, top: (top ?? []).map((each) => ({ text: each.token, logprob: each.logprob })),
    }));
  }
  const found = choice.logprobs;
  if (!found?.tokens) return plain(choice.text);
  return found.tokens.map((text, place) => ({
    text, logprob: found.token_logprobs[place],
    top: Object.entries(found.top_logprobs?.[place] ?? {}).map(([each, logprob]) => ({ text: each, logprob })).sort((a, b) => b.logprob - a.logprob),
  }));
}

/** The text in one choice; tokens may hold more, such as the mark of the end. */
export function textOf(choice, isChat) {
  return (isChat ? choice.delta?.content ?? choice.message?.content : choice.text) ?? "";
}

function plain(text) {
  return text ? [{ text, logprob: null, top: [] }] : [];
}
