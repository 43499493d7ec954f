// Draws every figure from the JSON beside it, in the colours of the page, and draws again when these change.
const dark = matchMedia('(prefers-color-scheme: dark)');
const plots = [...document.querySelectorAll('figure.plot')];
const PRINT_WIDTH = 680; // px, what an A4 page holds
const NARROW = 560; // px
const LONG = 24; // characters of a label, or of an axis's title, that a phone has room for
const LONG_TITLE = 54; // characters of a figure's title
const TITLE_LINE = 17; // px
const CELLS = 6; // columns of a heat map whose numbers can be read on a phone; those of more are on hover only
const LEANING = 110; // px for the title and slanted heads of columns
const AXIS = 50; // px of an axis with its title
const LEGEND_LINE = 24; // px; first there is room for one line per trace, and then no more than is used
const TWO_LINES = 1.5; // times the height, where labels have two
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function coloured(layout, light) {
  const ink = light ? '#1c2430' : css('--ink'), line = light ? '#d9dde3' : css('--line'), raised = light ? '#ffffff' : css('--raised');
  const axis = {gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line};
  const template = structuredClone(layout.template ?? {}), base = template.layout ?? {};
  template.layout = {
    ...base, paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', font: {...base.font, color: ink},
    xaxis: {...base.xaxis, ...axis}, yaxis: {...base.yaxis, ...axis},
    hoverlabel: {...base.hoverlabel, bgcolor: raised, bordercolor: line, font: {color: ink}},
    shapedefaults: {...base.shapedefaults, line: {...base.shapedefaults?.line, color: ink}},
    annotationdefaults: {...base.annotationdefaults, arrowcolor: ink},
    modebar: {...base.modebar, bgcolor: 'rgba(0,0,0,0)', color: line, activecolor: ink}, // else a half-transparent black
  };
  return {...layout, template, ...(light ? {width: PRINT_WIDTH} : {})};
}

// A long label takes two lines: it is broken at the space nearest to its middle.
function broken(label, long = LONG) {
  const spaces = [...String(label).matchAll(/ /g)].map(space => space.index), middle = label.length / 2;
  if (label.length < long || !spaces.length) return label;
  const at = spaces.reduce((best, space) => (Math.abs(space - middle) < Math.abs(best - middle) ? space : best));
  return label.slice(0, at) + '<br>' + label.slice(at + 1);
}

// On a phone the legend goes below the panels, where it can take as many lines as it needs; labels leave room.
function fitted({data, layout: wide}, width) {
  if (width > NARROW) return {data, layout: wide};
  const axes = Object.entries(wide).filter(([key, axis]) => key.startsWith('xaxis') && axis.title?.text);
  const named = axes.map(([key, axis]) => [key, {...axis, title: {...axis.title, text: broken(axis.title.text)}}]);
  const layout = {...wide, ...Object.fromEntries(named)};
  const below = {...layout.legend, orientation: 'h', x: 0, yref: 'container', y: 0, yanchor: 'bottom', font: {size: 11}};
  const text = broken(layout.title?.text ?? '', LONG_TITLE), second = text.includes('<br>') ? TITLE_LINE : 0;
  const title = {...layout.title, text, font: {size: 13}, pad: {t: 6 + second}}, margin = {...layout.margin, t: 48 + second};
  const height = (layout.height ?? 450) - (layout.margin?.t ?? 48) + margin.t + LEGEND_LINE * data.length;
  const phone = {...layout, title, margin, height, legend: below, font: {...layout.font, size: 11}};
  const panels = (layout.height ?? 450) - (layout.margin?.t ?? 48) - AXIS; // px that they shall have
  if (data[0]?.type === 'heatmap' && Array.isArray(data[0].x)) { // slant the heads of many columns
    const heads = data.map(trace => ({...trace, x: trace.x.map(head => String(head).replaceAll('<br>', ' ')), ...(trace.x.length > CELLS && {texttemplate: ''})}));
    return {data: heads, layout: {...phone, height: layout.height + LEANING / 2, margin: {...margin, t: LEANING}, xaxis: {...layout.xaxis, tickangle: -50}}};
  }
  if (layout.yaxis?.type !== 'category') return {data, layout: phone, panels};
  const labelled = data.map(trace => ({...trace, y: trace.y.map(label => broken(label))}));
  const taller = labelled.some(trace => trace.y.some(label => String(label).includes('<br>'))) ? TWO_LINES : 1;
  return {data: labelled, layout: phone, panels: panels * taller};
}

async function draw(light = false) {
  for (const figure of plots) {
    // One figure per frame, so that a reader can scroll and sees the first at once; print does not wait.
    if (!light) await new Promise(requestAnimationFrame);
    const spec = figure.spec ??= JSON.parse(figure.querySelector('script').textContent);
    const canvas = figure.querySelector('.canvas');
    const config = {...spec.config, responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: ''};
    if (canvas.clientWidth <= NARROW) config.displayModeBar = false; // it would lie on the title
    const shown = fitted({data: spec.data, layout: coloured(spec.layout, light)}, canvas.clientWidth);
    await Plotly.react(canvas, {data: shown.data, layout: shown.layout, config});
    if (shown.panels) await Plotly.relayout(canvas, {height: canvas._fullLayout.height + shown.panels - canvas._fullLayout._size.h});
    if (spec.frames && !figure.dataset.drawn) await Plotly.addFrames(canvas, spec.frames);
    figure.dataset.drawn = canvas.data.length;
  }
}

// The five megabytes of plotly load last, when the page can already be read and scrolled. A self-contained page
// holds them.
async function plotly() {
  if (self.Plotly) return;
  if (document.readyState !== 'complete') await new Promise(open => addEventListener('load', open, {once: true}));
  await new Promise((onload, onerror) => {
    document.head.append(Object.assign(document.createElement('script'), {src: 'plotly.min.js', onload, onerror}));
  });
}

function drawAll() {
  draw();
  dark.addEventListener('change', () => draw());
  addEventListener('beforeprint', () => draw(true));
  addEventListener('afterprint', () => draw());
}

function sayMissing() {
  for (const figure of plots) {
    figure.querySelector('.canvas').textContent =
      'This figure is drawn by plotly.min.js, which must lie beside the page. To send a page by itself, make it with --self-contained.';
  }
}

if (plots.length) plotly().then(drawAll, sayMissing);

// The head of a column of words stands above them, on the left.
document.querySelectorAll('.long').forEach(table => {
  const cells = table.tBodies[0].rows[0]?.cells ?? [];
  [...cells].forEach((cell, i) => table.tHead.rows[0].cells[i].classList.toggle('words', Boolean(cell.querySelector('.word'))));
});

const codeSwitch = document.getElementById('code-switch');
codeSwitch?.addEventListener('click', () => {
  const show = codeSwitch.getAttribute('aria-pressed') !== 'true';
  document.querySelectorAll('details.code').forEach(block => { block.open = show; });
  codeSwitch.setAttribute('aria-pressed', show);
  codeSwitch.textContent = show ? 'Hide all code' : 'Show all code';
});
if (innerWidth < 960) document.querySelector('.toc details').open = false;
