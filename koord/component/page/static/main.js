// The entry of the page: the frame, and the view that the daemon names.

import { follow } from "./page.js";

try {
  const view = await import(`./${document.documentElement.dataset.view}`);
  follow(view.start());
} catch (error) {
  document.getElementById("connection").textContent = `this page cannot be drawn: ${error.message}; load it again`;
}
