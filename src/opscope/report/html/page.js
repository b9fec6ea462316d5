"use strict";
// Pictures, sorting, filters, copying and the theme of a page. It loads nothing and keeps nothing.
(async () => {
  const root = document.documentElement;
  const find = (id) => document.getElementById(id);
  const say = (text) => { find("said").textContent = text; };
  const figures = JSON.parse(find("data").textContent);
  const chains = JSON.parse(find("chains").textContent);

  // -- theme
  const button = find("theme");
  const setTheme = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? button.dataset.light : button.dataset.dark;
    button.setAttribute("aria-label", `Use the ${dark ? "light" : "dark"} theme`);
    for (const plot of document.querySelectorAll(".js-plotly-plot")) repaint(plot);
  };
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  button.addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  preferred.addEventListener("change", () => setTheme(preferred.matches));
  setTheme(preferred.matches);

  // A notebook shows a page in a frame.
  if (window.frameElement?.srcdoc) {
    window.frameElement.style.height = `${Math.min(root.scrollHeight, 700)}px`;
    document.querySelector("nav")?.addEventListener("click", (event) => {
      event.preventDefault();
      find(event.target.hash?.slice(1))?.scrollIntoView();
    });
  }

  // What is packed in the page.
  const unpacked = (text) => {
    const packed = new Blob([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))]);
    return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const plotly = find("plotly") ? await unpacked(find("plotly").textContent) : "";

  // -- pictures
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const isNarrow = () => innerWidth < 700;
  const titled = ({ title }) => (title?.text ? { title } : {});
  const shortened = (text) => (text.length > 24 ? `${text.slice(0, 15)}…${text.slice(-8)}` : text);
  const themed = (layout) => {
    const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), linecolor: color("--line") };
    const whole = {
      margin: { l: 60, r: 24, t: 12, b: 48 }, ...layout,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("--text"), size: isNarrow() ? 10 : 12, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { align: "left", bgcolor: color("--raised"), bordercolor: color("--line"), font: { color: color("--text") } },
      showlegend: false,
    };
    if (isNarrow() && layout.yaxis?.ticktext) layout = { ...layout, yaxis: { ...layout.yaxis, ticktext: layout.yaxis.ticktext.map(shortened) } };
    for (const name of Object.keys(layout)) if (/^[xy]axis/.test(name)) whole[name] = { ...axis, ...layout[name], ...titled(layout[name]) };
    return whole;
  };
  const traces = (figure) => figure.data.map(({ names, themed: isThemed, ...trace }) => {
    if (names) trace.hovertext = trace.hovertext.map((text, index) => `${figure.names[names[index]]}<br>${text}`);
    if (isThemed) trace.line = { ...trace.line, color: color("--text") };
    if (isThemed && trace.marker) trace.marker = { ...trace.marker, color: color("--text") };
    return trace;
  });
  const settings = { displayModeBar: false, responsive: true, displaylogo: false, showTips: false };
  // Beside the picture, where it wraps and is read aloud; plotly's own would take the picture's room.
  const legend = (place, { data, layout }) => {
    const list = find(`${place.id}-legend`);
    list.replaceChildren();
    if (layout.showlegend === false) return;
    const seen = new Map(data.filter((one) => one.name && one.visible !== false).map((one) => [one.name, one]));
    for (const [name, { line, marker: { color: swatch = line?.color, pattern } = { color: line?.color ?? "var(--text)" } }] of seen) {
      const item = document.createElement("li");
      const mark = item.appendChild(document.createElement("i"));
      mark.style.background = pattern?.shape
        ? `repeating-linear-gradient(135deg, ${swatch} 0 3px, transparent 3px 5px)` : swatch;
      item.append(name);
      list.append(item);
    }
  };
  const plain = (text) => new DOMParser().parseFromString(text.replaceAll("<br>", ""), "text/html").documentElement.textContent;
  const CHARACTER = 6; // px, of a label
  const FEWEST = 5; // characters that say something
  // plotly is started when a picture comes near: the text is there before.
  const start = () => {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = plotly;
    document.body.append(script);
  };
  const draw = (place) => {
    if (place.dataset.drawn) return;
    place.dataset.drawn = "yes";
    start();
    const figure = figures[place.id];
    const height = Number(place.dataset.height);
    legend(place, figure);
    Plotly.newPlot(place, traces(figure), { ...themed(figure.layout), height }, settings);
    if (figure.kind === "zoom") {
      label(place);
      place.on("plotly_relayout", () => label(place));
    }
    if (figure.kind === "chain") place.on("plotly_icicleclick", (event) => showChain(event.points[0], figure.data[0]));
  };
  // The names of bars on those that are wide enough for the view: their last parts, cut where they end.
  const label = (place) => {
    const { data, names } = figures[place.id];
    const [low, high] = place.layout.xaxis.range;
    const scale = (place.clientWidth * 0.8) / (high - low);
    const short = names.map((name) => plain(name).replace(/[<(].*$/s, "").split(/:: ?|: /).pop());
    const bars = data.flatMap((one, index) => (one.names ? [index] : []));
    const text = bars.map((index) => {
      const { base, x, names: ofBars } = data[index];
      return ofBars.map((name, at) => {
        const seen = Math.min(high, base[at] + x[at]) - Math.max(low, base[at]);
        const room = Math.floor((seen * scale - 8) / CHARACTER);
        return room < Math.min(short[name].length, FEWEST) ? "" : short[name].slice(0, room);
      });
    });
    Plotly.restyle(place, { text, textposition: "inside", insidetextanchor: "start", textangle: 0, constraintext: "none", "textfont.size": 10 }, bars);
  };
  const repaint = (place, range = place.layout.xaxis?.range) => {
    const figure = figures[place.id];
    const layout = { ...themed(figure.layout), height: Number(place.dataset.height) };
    if (figure.kind === "zoom") layout.xaxis = { ...layout.xaxis, range: [...range] };
    Plotly.react(place, traces(figure), layout, settings);
    if (figure.kind === "zoom") label(place);
    place.dispatchEvent(new Event("repainted"));
  };

  // The way of a part of the icicle from the program to the source of its operator.
  const showChain = (point, trace) => {
    const panel = find("chain");
    const way = [];
    for (let at = trace.ids.indexOf(point.id); at > 0; at = trace.ids.indexOf(trace.parents[at])) way.unshift(at);
    const text = (at) => new DOMParser().parseFromString(trace.labels[at], "text/html").documentElement.textContent;
    panel.replaceChildren();
    if (!way.length) return;
    const path = panel.appendChild(document.createElement("p"));
    way.forEach((at, index) => {
      if (index) path.append(" → ");
      path.appendChild(document.createElement("code")).textContent = text(at);
    });
    path.append(`: ${trace.hovertext[way[way.length - 1]]}`);
    const operator = way.reverse().find((at) => trace.customdata[at] === "operator" && chains[text(at)]);
    if (operator !== undefined) panel.append(...find(chains[text(operator)]).cloneNode(true).children);
  };

  // The same by keyboard: from part to part, the largest first.
  for (const tools of document.querySelectorAll(".tools[data-parts]")) {
    const place = find(tools.dataset.parts);
    const [trace] = figures[place.id].data;
    const parts = (id) => trace.parents.flatMap((parent, at) => (parent === id ? [at] : [])).sort((one, other) => trace.values[other] - trace.values[one]);
    let at = 0;
    const go = (direction) => {
      const beside = parts(trace.parents[at]);
      const here = beside.indexOf(at);
      const next = { up: trace.ids.indexOf(trace.parents[at]), down: parts(trace.ids[at])[0], left: beside[here - 1], right: beside[here + 1] }[direction];
      if (!(next >= 0)) return;
      at = next;
      draw(place);
      Plotly.restyle(place, {
        "marker.line.width": [trace.ids.map((_, index) => (index === at ? 3 : 0.5))],
        "marker.line.color": [trace.ids.map((_, index) => color(index === at ? "--text" : "--back"))],
      });
      showChain({ id: trace.ids[at] }, trace);
    };
    tools.addEventListener("click", (event) => go(event.target.dataset.go));
    tools.addEventListener("keydown", (event) => {
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      go(event.key.slice(5).toLowerCase());
    });
  }

  // What is searched for stays bright, and Enter goes from one to the next.
  const searched = (place, input, count) => {
    let matches = [];
    let at = -1;
    const apply = () => {
      draw(place);
      const { data, names } = figures[place.id];
      const bars = data.flatMap((one, index) => (one.names ? [index] : []));
      const readable = names.map((name) => plain(name).toLowerCase());
      const words = input.value.trim().toLowerCase();
      const parts = words.split(/[<>\s]*…[<>\s]*/); // a name as reports shorten it
      const is = readable.map((name) => parts.every((part) => name.includes(part)));
      Plotly.restyle(place, { "marker.opacity": bars.map((index) => (words ? data[index].names.map((one) => (is[one] ? 1 : 0.12)) : 1)) }, bars);
      matches = bars.flatMap((index) => data[index].names.flatMap((one, event) => (is[one] ? [[data[index].base[event], data[index].x[event]]] : [])));
      matches.sort((one, other) => one[0] - other[0]);
      at = -1;
      count.textContent = words ? `${matches.length} found` : "";
      if (words) say(count.textContent);
    };
    input.addEventListener("input", apply);
    input.addEventListener("keydown", ({ key }) => {
      if (key !== "Enter" || !matches.length || !input.value.trim()) return;
      at = (at + 1) % matches.length;
      const [start, lasted] = matches[at];
      const [low, high] = figures[place.id].layout.xaxis.range;
      const half = Math.max(10 * lasted, (high - low) / 100);
      Plotly.relayout(place, { "xaxis.range": [Math.max(low, start + lasted / 2 - half), Math.min(high, start + lasted / 2 + half)] });
      count.textContent = `${at + 1} of ${matches.length}`;
      say(count.textContent);
    });
    place.addEventListener("repainted", () => { if (input.value.trim()) apply(); });
  };
  const withArrows = (place, button) => {
    const show = () => {
      const hidden = figures[place.id].data.flatMap((one, index) => (one.visible === false ? [index] : []));
      if (hidden.length) Plotly.restyle(place, { visible: button.getAttribute("aria-pressed") === "true" }, hidden);
    };
    button.addEventListener("click", () => {
      draw(place);
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
      show();
    });
    place.addEventListener("repainted", show);
  };

  // Zoom by keyboard and touch.
  for (const tools of document.querySelectorAll(".tools[data-for]")) {
    const place = find(tools.dataset.for);
    searched(place, tools.querySelector("input"), tools.querySelector(".found"));
    const button = tools.querySelector("[data-arrows]");
    if (button) withArrows(place, button);
  }
  const goTo = (place, { zoom, move }) => {
    draw(place);
    const whole = figures[place.id].layout.xaxis.range;
    const [low, high] = place.layout.xaxis.range;
    const width = high - low;
    const middle = (low + high) / 2 + width * Number(move ?? 0);
    const half = (width * Number(zoom ?? 1)) / 2;
    const range = [Math.max(whole[0], middle - half), Math.min(whole[1], middle + half)];
    if (zoom === "0" || range[0] < range[1]) Plotly.relayout(place, { "xaxis.range": zoom === "0" ? [...whole] : range });
  };
  // The same picture of another step.
  const turn = async (place, by) => {
    const { views, at, ...before } = figures[place.id];
    const to = at + Number(by);
    if (!views?.[to]) return;
    draw(place);
    views[at] = before;
    if (typeof views[to] === "string") views[to] = JSON.parse(await unpacked(views[to]));
    const figure = figures[place.id] = { ...views[to], views, at: to };
    const parts = place.closest("figure");
    for (const [part, text] of [["strong", figure.title], ["span", figure.note]]) parts.querySelector(`figcaption ${part}`).textContent = text;
    place.setAttribute("aria-label", `${figure.title}. ${figure.note}`);
    place.dataset.height = figure.height;
    place.style.height = `${figure.height}px`;
    for (const button of parts.querySelectorAll("[data-step]")) button.disabled = !views[to + Number(button.dataset.step)];
    legend(place, figure);
    repaint(place, figure.layout.xaxis.range);
    say(figure.title);
  };
  const act = (place, { step, zoom, move }) => {
    if (step !== undefined) turn(place, step);
    else if (zoom !== undefined || move !== undefined) goTo(place, { zoom, move });
  };
  for (const tools of document.querySelectorAll(".tools[data-for]")) {
    tools.addEventListener("click", (event) => act(find(tools.dataset.for), event.target.dataset));
  }
  // The same by the keys of Perfetto, where the picture is seen.
  const KEYS = { w: { zoom: "0.5" }, s: { zoom: "2" }, a: { move: "-0.25" }, d: { move: "0.25" }, p: { step: "-1" }, n: { step: "1" } };
  document.addEventListener("keydown", (event) => {
    const to = KEYS[event.key.toLowerCase()];
    if (!to || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const isSeen = (place) => {
      const { top, bottom } = place.getBoundingClientRect();
      return top < window.innerHeight && bottom > 0;
    };
    for (const place of document.querySelectorAll(".chart")) if (figures[place.id]?.kind === "zoom" && isSeen(place)) act(place, to);
  });

  // -- tables
  const UNITS = {
    ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, FLOP: 1, kFLOP: 1e3, MFLOP: 1e6,
    GFLOP: 1e9, TFLOP: 1e12, PFLOP: 1e15, KiB: 1024, MiB: 1048576, GiB: 1073741824,
  };
  const amount = (text) => {
    const found = /^[<−-]?\s*([\d,]+(?:\.\d+)?)\s*([a-zA-Zµ]*)/.exec(text.trim());
    if (!found) return null;
    const sign = /^[−-]/.test(text.trim()) ? -1 : 1;
    return sign * Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1);
  };
  const sort = (table, column, header) => {
    const isNumber = header.classList.contains("number");
    const was = header.getAttribute("aria-sort");
    const ascending = was ? was === "descending" : !isNumber;
    const keyed = [...table.tBodies[0].rows].map((row) => {
      const text = row.cells[column].textContent;
      return { row, key: isNumber ? amount(text) : text.toLowerCase() };
    });
    keyed.sort((one, other) => {
      if (one.key === null || other.key === null) return (one.key === null) - (other.key === null);
      const order = one.key < other.key ? -1 : Number(one.key > other.key);
      return ascending ? order : -order;
    });
    table.tBodies[0].append(...keyed.map(({ row }) => row));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    say(`Sorted by ${header.textContent}, ${ascending ? "ascending" : "descending"}`);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      const title = document.createElement("button");
      title.type = "button";
      title.append(...header.childNodes);
      header.append(title);
      title.addEventListener("click", () => sort(table, column, header));
    });
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 13) continue;
    const bar = document.createElement("label");
    bar.className = "filter";
    const input = document.createElement("input");
    const count = document.createElement("span");
    input.type = "search";
    bar.append("Filter", input, count);
    table.parentElement.before(bar);
    const apply = () => {
      const words = input.value.toLowerCase().split(/[\s<>…]+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += Number(!row.hidden);
      }
      count.textContent = `${shown} of ${rows.length} rows`;
      if (words.length) say(count.textContent);
    };
    input.addEventListener("input", apply);
    apply();
  }

  // -- copying
  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.body.appendChild(document.createElement("textarea"));
      area.value = text;
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  for (const copy of document.querySelectorAll(".copy")) {
    copy.addEventListener("click", async () => {
      await copied(copy.parentElement.querySelector("code").textContent);
      const before = copy.textContent;
      copy.textContent = copy.dataset.copied;
      say(copy.dataset.copied);
      setTimeout(() => { copy.textContent = before; }, 1500);
    });
  }

  // -- start: pictures are drawn when they come near, and all of them for a printer
  const places = [...document.querySelectorAll(".chart")];
  // On a narrow screen the changes have to be in sight below the first picture.
  if (innerWidth <= 700) for (const place of document.querySelectorAll(".first .chart")) place.dataset.height = Math.min(place.dataset.height, 250);
  for (const place of places) place.style.height = `${place.dataset.height}px`;
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
  }, { rootMargin: "600px" });
  requestAnimationFrame(() => setTimeout(() => places.forEach((place) => watcher.observe(place))));
  addEventListener("beforeprint", () => {
    setTheme(false);
    for (const place of places) draw(place);
    for (const part of document.querySelectorAll("details.part, details.evidence")) part.open = true;
  });
})();
