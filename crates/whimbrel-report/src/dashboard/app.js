// Follows a run: asks for status.json every second and redraws what changed. Everything that came
// from a user is set as text, never as markup.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const at = (id) => document.getElementById(id);
  const element = (name, text, className) => {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  };
  const shape = (name, attributes, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const setText = (id, text) => { const node = at(id); if (node.textContent !== text) node.textContent = text; };

  const number = (v, digits = 4) => {
    if (v === null || v === undefined || !isFinite(v)) return "–";
    if (v === 0) return "0";
    const size = Math.abs(v);
    if (size >= 1e-3 && size < 1e6) return String(Number(v.toPrecision(digits)));
    return v.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  };
  const count = (v) => String(v).replace(/\B(?=(\d{3})+$)/g, ",");
  const bytes = (value) => {
    for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (value >= size) return `${number(value / size, 3)} ${unit}`;
    }
    return value === 1 ? "1 byte" : `${value} bytes`;
  };
  const duration = (seconds) => {
    if (seconds === null || seconds === undefined || !isFinite(seconds)) return "–";
    if (seconds < 1) return `${number(1000 * seconds, 2)} ms`;
    if (seconds < 59.5) return `${number(seconds, 2)} s`;
    // Rounded first, so that no part reaches 60.
    const s = seconds < 3600 ? Math.round(seconds) : 60 * Math.round(seconds / 60);
    if (s < 3600 && s % 60 === 0) return `${s / 60} min`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
    if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round(s % 3600 / 60)} min`;
    return `${Math.floor(s / 86400)} days`;
  };

  const STATES = {
    waiting: "waiting for clients", running: "running", paused: "paused", done: "finished", failed: "failed",
  };
  const MARKS = { connected: "●", away: "○", finished: "✓", invited: "·", revoked: "×", dead: "×" };

  function tiles(s) {
    const open = s.exchange;
    const scope = s.stages > 1 ? ", this stage" : "";
    const rows = [
      [s.rounds ? `round, of ${count(s.rounds)}` : "round", count(s.round)],
      ["this round", open ? `${open.answered} of ${open.cohort}` : "–"],
      ...s.measures.map((m) => [m.name, number(lastOf(s.series, m.key), m.digits), true]),
      ["rounds per second", s.rounds_per_second === null ? "–" : number(s.rounds_per_second, 3)],
      ["last round", duration(s.round_seconds)],
      ["epsilon spent", s.epsilon_spent === null ? "–" : number(s.epsilon_spent, 3), true],
      [`sent up${scope}`, bytes(s.bytes_up)],
      [`sent down${scope}`, bytes(s.bytes_down)],
      ["in evaluations", s.bytes_eval ? bytes(s.bytes_eval) : "–", true],
      ["log", bytes(s.log_bytes)],
      ["disk free", s.disk_free === null ? "–" : bytes(s.disk_free), true],
      ["running for", duration(s.seconds)],
      ["time left", s.state === "running" ? duration(s.seconds_left) : "–"],
    ];
    const list = at("tiles");
    while (list.children.length < rows.length) {
      const box = element("div");
      box.append(element("dt"), element("dd"));
      list.append(box);
    }
    while (list.children.length > rows.length) list.lastChild.remove();
    rows.forEach(([name, value, optional], i) => {
      const [dt, dd] = list.children[i].children;
      if (dt.textContent !== name) dt.textContent = name;
      if (dd.textContent !== value) dd.textContent = value;
      list.children[i].hidden = value === "–" && Boolean(optional);
    });
    const bar = at("bar");
    const share = s.rounds ? Math.min(1, s.round / s.rounds) : 0;
    bar.hidden = !s.rounds;
    bar.setAttribute("aria-valuemin", 0);
    bar.setAttribute("aria-valuemax", s.rounds || 0);
    bar.setAttribute("aria-valuenow", s.round);
    at("bar-fill").style.width = `${100 * share}%`;
  }

  const lastOf = (series, key) => {
    for (let i = series.length - 1; i >= 0; i -= 1) if (key in series[i].figures) return series[i].figures[key];
    return null;
  };

  const SENT = { key: "bytes", title: "Sent so far", about: "both ways, in MB", of: (p) => 1e-6 * (p.bytes_up + p.bytes_down) };
  const chartOf = (m) => ({
    key: m.key, title: m.title, log: m.scale === "log", of: (p) => p.figures[m.key],
    about: m.scale === "log" ? `${m.caption}; log scale` : m.caption,
  });
  const along = { round: (p) => p.round, seconds: (p) => p.seconds, bytes: (p) => 1e-6 * (p.bytes_up + p.bytes_down) };
  const units = { round: "rounds", seconds: "seconds", bytes: "MB, both ways" };

  function charts(s) {
    const x = document.querySelector("#against input:checked").value;
    const home = at("charts");
    const drawn = [];
    for (const chart of [...s.measures.map(chartOf), SENT]) {
      if (chart === SENT && x === "bytes") continue;
      const points = s.series.map((p) => [along[x](p), chart.of(p)])
        .filter(([a, b]) => isFinite(a) && b !== null && b !== undefined && isFinite(b) && (!chart.log || b > 0));
      if (points.length > 1) drawn.push(draw(chart, points, units[x]));
    }
    if (!drawn.length) drawn.push(element("p", "No round has been evaluated yet.", "quiet"));
    home.replaceChildren(...drawn);
  }

  function draw(chart, points, unit) {
    const [W, H, left, top, right, bottom] = [380, 220, 58, 12, 10, 34];
    const map = chart.log ? Math.log10 : Number;
    const ys = points.map((p) => map(p[1]));
    let [low, high] = [Math.min(...ys), Math.max(...ys)];
    if (chart.log) { low = Math.floor(low); high = Math.max(low + 1, Math.ceil(high)); }
    if (high - low < 1e-12 * Math.max(1, Math.abs(high))) { low -= 0.5; high += 0.5; }
    const [first, last] = [points[0][0], points[points.length - 1][0]];
    const px = (v) => left + (W - left - right) * (last > first ? (v - first) / (last - first) : 0.5);
    const py = (v) => top + (H - top - bottom) * (1 - (v - low) / (high - low));
    const figure = element("figure");
    const caption = element("figcaption");
    caption.append(element("h3", chart.title), element("p", chart.about));
    const svg = shape("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, role: "img" });
    const final = points[points.length - 1];
    svg.append(shape("title", {}, `${chart.title}: ${number(final[1])} after ${number(final[0])} ${unit}`));
    const stride = chart.log ? Math.max(1, Math.ceil((high - low) / 4)) : (high - low) / 4;
    for (let v = low; v <= high + 1e-9 * (high - low); v += stride) {
      svg.append(shape("path", { class: "grid", d: `M${left} ${py(v)}H${W - right}` }));
      const label = chart.log ? `1e${Math.round(v)}` : number(v, Math.min(9, 2 + Math.ceil(Math.max(0, Math.log10(Math.abs(v || 1) / (high - low))))));
      svg.append(shape("text", { x: left - 7, y: py(v), dy: ".33em", "text-anchor": "end" }, label));
    }
    for (const [v, anchor] of [[first, "start"], [last, "end"]]) {
      svg.append(shape("text", { x: px(v), y: H - bottom + 17, "text-anchor": anchor }, number(v)));
    }
    svg.append(shape("text", { x: W - right, y: H - 3, "text-anchor": "end" }, unit));
    const path = points.map((p, i) => `${px(p[0]).toFixed(1)} ${py(ys[i]).toFixed(1)}`).join("L");
    svg.append(shape("path", { class: "line", d: `M${path}` }));
    svg.append(shape("circle", { class: "last", cx: px(final[0]), cy: py(map(final[1])), r: 3 }));
    figure.append(caption, svg);
    return figure;
  }

  // A row per client; only cells that changed are touched, so that a screen reader is not disturbed.
  function clients(s) {
    const body = at("clients-rows");
    while (body.children.length > s.clients.length) body.lastChild.remove();
    s.clients.forEach((client, i) => {
      let row = body.children[i];
      if (!row) {
        row = element("tr");
        for (const label of ["client", "state", "latency", "missed", "last seen", "rounds", "up", "down", "refused", "last rounds", "address", "disconnects", "rows"]) {
          const cell = element("td");
          cell.dataset.label = label;
          row.append(cell);
        }
        body.append(row);
      }
      const latency = duration(client.latency_s);
      const texts = [
        client.name, client.state, latency, count(client.missed), client.last_seen_s === null ? "–" : `${duration(client.last_seen_s)} ago`,
        count(client.rounds), bytes(client.bytes_up), bytes(client.bytes_down), count(client.refused),
      ];
      texts.forEach((text, place) => {
        const cell = row.children[place];
        if (place === 1) {
          if (cell.dataset.state === text) return;
          cell.dataset.state = text;
          const mark = element("span", MARKS[text] || "·", `mark ${text}`);
          mark.setAttribute("aria-hidden", "true");
          const both = element("span");
          both.append(mark, document.createTextNode(text));
          cell.replaceChildren(both);
        } else if (cell.textContent !== text) cell.textContent = text;
      });
      const cell = row.children[9];
      if (cell.dataset.strip !== client.strip) {
        cell.dataset.strip = client.strip;
        cell.replaceChildren(strip(client.strip));
      }
      [client.address || "–", String(client.disconnects), client.rows === null ? "–" : count(client.rows)].forEach((text, i) => {
        if (row.children[10 + i].textContent !== text) row.children[10 + i].textContent = text;
      });
    });
    const are = (state) => s.clients.filter((c) => c.state === state).length;
    const note = s.state === "done" ? `${are("finished")} of ${s.clients.length} have the model` : `${are("connected")} of ${s.clients.length} connected`;
    setText("clients-note", note + (s.clients_more ? `, ${s.clients_more} more not shown` : ""));
  }

  const STRIP = 24; // More would push latency and missed rounds off the screen.
  function strip(all) {
    const marks = all.slice(-STRIP);
    const svg = shape("svg", { class: "strip", viewBox: `0 0 ${8 * Math.max(1, marks.length)} 12`, width: 8 * Math.max(1, marks.length), role: "img" });
    const accepted = [...marks].filter((m) => m === "y").length;
    const asked = [...marks].filter((m) => m !== ".").length;
    svg.append(shape("title", {}, `accepted ${accepted} of ${asked} times asked in the last ${marks.length} rounds`));
    [...marks].forEach((mark, i) => {
      if (mark === "y") svg.append(shape("rect", { class: "yes", x: 8 * i + 1, y: 1, width: 6, height: 10 }));
      else if (mark === "n") svg.append(shape("rect", { class: "no", x: 8 * i + 1.5, y: 1.5, width: 5, height: 9 }));
      else svg.append(shape("rect", { class: "off", x: 8 * i + 1, y: 5, width: 6, height: 2 }));
    });
    return svg;
  }

  function refused(s) {
    const rows = s.refused.length ? s.refused : [["nothing so far", ""]];
    at("refused").replaceChildren(...rows.flatMap(([reason, count]) => [element("dt", reason), element("dd", String(count))]));
  }

  let newest = "";
  function log(s) {
    const mark = JSON.stringify(s.log[s.log.length - 1] || "") + s.log.length;
    if (mark === newest) return;
    newest = mark;
    at("log").replaceChildren(...[...s.log].reverse().map((line) => {
      const item = element("li", undefined, line.level);
      item.append(element("time", line.time), document.createTextNode(`${line.level === "info" ? "" : `${line.level}: `}${line.text}`));
      return item;
    }));
  }

  function show(s) {
    setText("job", s.job);
    document.title = `${s.job}: ${s.rounds ? `${s.round}/${s.rounds}` : s.round} – whimbrel`;
    const state = at("state");
    state.className = `state ${s.state}`;
    setText("state", STATES[s.state] || s.state);
    const stage = s.stages > 1 ? ` · stage ${s.stage + 1} of ${s.stages}: ${s.stage_name}` : "";
    setText("about", `${s.method} · ${s.model}${stage}`);
    const spent = s.epsilon_spent === null ? "" : `; epsilon spent so far: ${number(s.epsilon_spent, 3)} at delta ${number(s.delta)}`;
    setText("privacy", s.privacy + spent);
    const banner = at("banner");
    const said = [s.message, s.report && `Report: ${s.report}`].filter(Boolean).join(". ");
    banner.hidden = !said;
    banner.classList.toggle("error", s.state === "failed");
    banner.classList.toggle("done", s.state === "done");
    setText("banner", said);
    setText("version", `whimbrel ${s.version}`);
    tiles(s);
    charts(s);
    clients(s);
    refused(s);
    log(s);
  }

  let latest = null;
  const isOver = () => latest && (["done", "failed"].includes(latest.state) || (latest.rounds && latest.round >= latest.rounds));
  async function follow() {
    try {
      const answer = await fetch("status.json", { cache: "no-store", credentials: "same-origin" });
      if (!answer.ok) throw new Error(answer.status === 401 ? "the link to this page is no longer valid" : `the coordinator answered ${answer.status}`);
      latest = await answer.json();
      show(latest);
    } catch (error) {
      const state = at("state");
      if (isOver() && error instanceof TypeError) {
        // The coordinator ends with the run: its last word stays.
        const failed = latest.state === "failed";
        state.className = `state ${failed ? "failed" : "done"}`;
        setText("state", failed ? "failed" : "finished");
        const banner = at("banner");
        banner.hidden = false;
        banner.classList.toggle("done", !failed);
        const report = latest.report || "report.html in the run's folder";
        const said = [latest.message, "The coordinator has ended", `Report: ${report}`];
        setText("banner", said.filter(Boolean).join(". "));
        return;
      }
      // A coordinator that was told to stop says so before it ends.
      const paused = latest && latest.state === "paused" && error instanceof TypeError;
      state.className = `state ${paused ? "paused" : "lost"}`;
      setText("state", paused ? STATES.paused : "no contact");
      const banner = at("banner");
      banner.hidden = false;
      const why = paused ? `${latest.message}. The coordinator has ended` : `No contact with the coordinator: ${error.message}`;
      setText("banner", `${why}. Trying again.`);
    }
    const over = latest && (latest.state === "done" || latest.state === "failed");
    setTimeout(follow, document.hidden || over ? 5000 : 1000);
  }
  at("against").addEventListener("change", () => { if (latest) charts(latest); });
  follow();
})();
