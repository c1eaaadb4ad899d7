// The read-out under the pointer. The page is complete without it: switches are plain radio
// buttons, and every plot is drawn.
(() => {
  "use strict";
  const show = (v) => {
    if (v === 0) return "0";
    const size = Math.abs(v);
    if (size >= 1e-3 && size < 1e6) return String(Number(v.toPrecision(5)));
    return v.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  };
  const brief = (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name);
  const axis = (text) => {
    const [low, high, scale] = text.split(" ");
    const map = scale === "Log" ? Math.log10 : Number;
    const [a, b] = [map(Number(low)), map(Number(high))];
    return (v) => (v === null ? NaN : (map(v) - a) / (b - a));
  };
  const swatch = (style) => {
    const copy = document.querySelector(`.swatch .s${style % 8}`);
    return copy ? copy.ownerSVGElement.cloneNode(true) : document.createElement("span");
  };

  for (const figure of document.querySelectorAll("figure[data-live]")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    figure.append(tip);

    for (const svg of figure.querySelectorAll("svg.lines")) {
      const key = svg.dataset.key;
      const [left, top, width, height] = svg.dataset.frame.split(" ").map(Number);
      const [atX, atY] = [axis(svg.dataset.x), axis(svg.dataset.y)];
      const scale = svg.dataset.y.split(" ")[2];
      const series = data.series.map((s) => ({
        ...s,
        at: s.x[key].map((x, i) => {
          const { y, sd } = s[scale];
          return { x, y: y[i], sd: sd && sd[i], px: atX(x), py: atY(y[i]) };
        }).filter((p) => isFinite(p.px) && isFinite(p.py)),
      })).filter((s) => s.at.length);
      if (!series.length) continue;
      // The browser's own tooltip would cover ours; the name stays for those who listen.
      const title = svg.querySelector("title");
      svg.setAttribute("aria-label", title.textContent);
      title.remove();
      svg.setAttribute("tabindex", "0");
      const cursor = document.createElementNS(svg.namespaceURI, "path");
      cursor.setAttribute("class", "cursor");
      let place = 1;

      // Over seeds: on a log axis mean and deviation of log10, as in the table at the top.
      const text = ({ y, sd }) => {
        if (sd === null) return show(y);
        if (scale === "Log") return `log10: ${Math.log10(y).toFixed(2)} ± ${sd.toFixed(2)}`;
        return `${show(y)} ± ${show(Number(sd.toPrecision(2)))}`;
      };
      const hide = () => { tip.hidden = true; cursor.remove(); };
      const read = (fraction) => {
        place = Math.min(1, Math.max(0, fraction));
        const near = series.map((s) => s.at.reduce((a, b) =>
          (Math.abs(b.px - place) < Math.abs(a.px - place) ? b : a)));
        const nearest = near.reduce((a, b) => (Math.abs(b.px - place) < Math.abs(a.px - place) ? b : a));
        cursor.setAttribute("d", `M${left + nearest.px * width} ${top}v${height}`);
        svg.append(cursor);
        tip.replaceChildren();
        const head = document.createElement("b");
        head.textContent = `${show(nearest.x)} ${data.units[key]}`;
        tip.append(head);
        series.forEach((s, i) => {
          // A line that ended before, or starts after, has nothing to say here.
          if (Math.abs(near[i].px - nearest.px) > 0.04) return;
          const row = document.createElement("span");
          const value = document.createElement("i");
          value.textContent = text(near[i]);
          row.append(swatch(s.style), brief(s.label), value);
          tip.append(row);
        });
        tip.hidden = false;
        const [box, frame] = [svg.getBoundingClientRect(), figure.getBoundingClientRect()];
        const x = box.left - frame.left + (left + nearest.px * width) * box.width / svg.viewBox.baseVal.width;
        const flip = x + tip.offsetWidth + 14 > frame.width;
        tip.style.left = `${Math.max(0, flip ? x - tip.offsetWidth - 12 : x + 12)}px`;
        // Above the plot, where it hides the caption and not the lines.
        const y = box.top - frame.top + top * box.height / svg.viewBox.baseVal.height;
        tip.style.top = `${y - tip.offsetHeight - 2}px`;
      };
      const follow = (event) => {
        const box = svg.getBoundingClientRect();
        read(((event.clientX - box.left) * svg.viewBox.baseVal.width / box.width - left) / width);
      };
      svg.addEventListener("pointermove", follow);
      svg.addEventListener("pointerdown", follow);
      svg.addEventListener("pointerleave", hide);
      svg.addEventListener("blur", hide);
      svg.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
        if (step) { event.preventDefault(); read(place + step); }
        if (event.key === "Escape") hide();
      });
    }
  }
})();
