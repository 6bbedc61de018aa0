// Which of the server's models answers. With one there is nothing to choose.
import { byId, element } from "./dom.js";

export class Picker {
  /** `chosen(name)` hears of another choice. */
  constructor(chosen) {
    byId("models").addEventListener("change", () => {
      this.model = byId("models").value;
      chosen(this.model);
    });
    this.model = null; // null: the only one
  }

  /** Offer these; the choice stays where it still can. */
  offer(names, current) {
    const several = names.length > 1;
    if (!several) this.model = null;
    else if (!names.includes(this.model)) this.model = names.includes(current) ? current : names[0];
    byId("models").hidden = !several;
    byId("model").hidden = several;
    byId("models").replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    if (several) byId("models").value = this.model;
  }
}
