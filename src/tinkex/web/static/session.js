// The key and the operator token of this tab. sessionStorage ends with the tab and is never sent
// anywhere by itself; nothing here goes into an address.

const KEY = "tinkex.key";
const OPERATOR = "tinkex.operator";

export const session = {
  get key() { return sessionStorage.getItem(KEY) ?? ""; },
  get operatorToken() { return sessionStorage.getItem(OPERATOR) ?? ""; },

  signIn(key) { sessionStorage.setItem(KEY, key); },

  /** Keeps the operator's token; an empty one drops it. */
  setOperatorToken(token) {
    if (token) sessionStorage.setItem(OPERATOR, token);
    else sessionStorage.removeItem(OPERATOR);
  },

  signOut() {
    sessionStorage.removeItem(KEY);
    sessionStorage.removeItem(OPERATOR);
  },
};
