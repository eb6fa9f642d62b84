// Before the first paint, so that a chosen theme does not flash in. Only this choice is kept in
// localStorage; the key is in sessionStorage.
"use strict";
{
  const chosen = localStorage.getItem("tinkex.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
