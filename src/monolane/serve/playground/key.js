// Asks for the API key.
import { hasKey, setKey } from "./api.js";
import { byId } from "./dom.js";

/** True once a key was given, false when it was not. */
export function askForKey() {
  const dialog = byId("key-dialog");
  if (hasKey()) byId("key-why").textContent = "The server did not accept that key. Try another.";
  byId("key").value = "";
  return new Promise((resolve) => {
    let given = false;
    byId("key-form").onsubmit = () => {
      setKey(byId("key").value.trim());
      given = true;
    };
    byId("key-cancel").onclick = () => dialog.close();
    dialog.onclose = () => resolve(given);
    dialog.showModal();
  });
}
