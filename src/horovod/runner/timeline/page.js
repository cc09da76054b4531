// What a pointer shows: the text of data-tip, or the value of the heat map below it. All else works without.
"use strict";
const tip = document.getElementById("tip");

function show(text, x, y) {
  tip.textContent = text;
  tip.style.display = "block";
  const left = x + 14 + tip.offsetWidth > innerWidth ? x - 14 - tip.offsetWidth : x + 14;
  const top = y + 14 + tip.offsetHeight > innerHeight ? y - 14 - tip.offsetHeight : y + 14;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, top) + "px";
}

function duration(micros) {
  if (micros < 1e3) return micros.toPrecision(2) + " us";
  return micros < 1e6 ? (micros / 1e3).toPrecision(2) + " ms" : (micros / 1e6).toPrecision(2) + " s";
}

// The cells of a heat map are the pixels of its picture: how opaque they are is their value.
const pixels = new Map();
function pixelsOf(image) {
  if (!pixels.has(image)) {
    const canvas = document.createElement("canvas");
    canvas.width = image.naturalWidth;
    canvas.height = image.naturalHeight;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    pixels.set(image, context.getImageData(0, 0, canvas.width, canvas.height));
  }
  return pixels.get(image);
}

function cellText(image, x, y) {
  const data = pixelsOf(image);
  const box = image.getBoundingClientRect();
  const column = Math.min(data.width - 1, Math.max(0, Math.floor(((x - box.left) / box.width) * data.width)));
  const row = Math.min(data.height - 1, Math.max(0, Math.floor(((y - box.top) / box.height) * data.height)));
  const value = (data.data[4 * (row * data.width + column) + 3] / 255) * Number(image.dataset.top);
  const rows = image.dataset.rows.split("\n");
  const steps = image.dataset.steps.split(" ");
  const behind = value > 0 ? "about " + duration(value) + " behind" : "not behind";
  return rows[row] + "\nstep " + steps[column] + ": " + behind;
}

document.addEventListener("pointermove", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const image = target && target.closest("img[data-rows]");
  const part = target && target.closest("[data-tip]");
  if (image) show(cellText(image, event.clientX, event.clientY), event.clientX, event.clientY);
  else if (part) show(part.dataset.tip, event.clientX, event.clientY);
  else tip.style.display = "none";
});
document.addEventListener("scroll", () => (tip.style.display = "none"), { passive: true });
