() => {
  const faults = [], canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const describe = one => one.tagName.toLowerCase() + (one.id ? "#" + one.id : "") + " " + one.textContent.trim().slice(0, 40);
  const visible = one => one.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const rgba = text => {                      // whatever notation: as the browser paints it
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = "#000"; canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map(n => top[n] * top[3] + below[n] * (1 - top[3])).concat(1);
  const ground = one => {
    const layers = [];
    for (let at = one; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = color => {
    const [r, g, b] = color.slice(0, 3).map(x => x / 255).map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const contrast = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y); return (high + .05) / (low + .05); };

  let texts = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || ["SCRIPT", "STYLE", "OPTION"].includes(one.tagName)) continue;
    if (!visible(one) || one.closest(":disabled, .vh")) continue;
    const style = getComputedStyle(one), size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
    const least = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5, below = ground(one);
    const found = contrast(over(rgba(style.color), below), below);
    texts++;
    if (found < least) faults.push("contrast " + found.toFixed(2) + " of " + describe(one));
  }

  const names = one => one.getAttribute("aria-label") || (one.getAttribute("aria-labelledby") || "").split(" ").map(id => document.getElementById(id)?.textContent || "").join(" ").trim()
    || [...(one.labels || [])].map(label => label.textContent).join(" ").trim() || (["BUTTON", "A", "SUMMARY"].includes(one.tagName) ? one.textContent.trim() : "");
  for (const one of document.querySelectorAll("a[href], button, input, select, summary, [role=listbox], [role=group], [role=img], [tabindex='0'], dialog, section"))
    if (!names(one)) faults.push("no name: " + describe(one));
  for (const one of document.querySelectorAll("button, input, select")) {
    if (!visible(one) || one.disabled) continue;
    const box = one.getBoundingClientRect(), style = getComputedStyle(one);
    const label = one.type === "checkbox" && [...one.labels].find(l => l.getBoundingClientRect().width > 0);
    if (!label && (box.width < 24 || box.height < 24)) faults.push("small: " + describe(one) + " " + box.width + " x " + box.height);
    if (one.type === "checkbox" || one.classList.contains("bare") || one.tagName === "BUTTON") continue;
    if (contrast(rgba(style.borderTopColor), ground(one.parentElement)) < 3) faults.push("border of " + describe(one));
  }
  const ids = [...document.querySelectorAll("[id]")].map(one => one.id);
  for (const id of new Set(ids.filter((one, n) => ids.indexOf(one) !== n))) faults.push("the id " + id + " stands twice");
  for (const name of ["aria-controls", "aria-labelledby", "aria-activedescendant", "for"])
    for (const one of document.querySelectorAll("[" + name + "]"))
      if (!document.getElementById(one.getAttribute(name))) faults.push(name + " of " + describe(one) + " names nothing");
  let level = 0;
  for (const one of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    if (!visible(one)) continue;
    const own = Number(one.tagName[1]);
    if (own > level + 1) faults.push("heading " + describe(one) + " leaves out a level");
    level = own;
  }
  if (!document.documentElement.lang || !document.title || document.querySelectorAll("main").length !== 1) faults.push("no language, title or main");
  return [faults, texts];
}
