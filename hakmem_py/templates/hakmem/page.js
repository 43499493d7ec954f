// Draws every figure from the JSON beside it, in the colours of the page, and draws again when these change.
const dark = matchMedia('(prefers-color-scheme: dark)');
const plots = [...document.querySelectorAll('figure.plot')];
const PRINT_WIDTH = 680; // px, what an A4 page holds
const NARROW = 560; // px
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
  };
  return {...layout, template, ...(light ? {width: PRINT_WIDTH} : {})};
}

// On a phone the legend goes below the panels, where it can take as many lines as it needs.
function fitted(layout, width) {
  if (width > NARROW) return layout;
  const below = {...layout.legend, orientation: 'h', x: 0, yref: 'container', y: 0, yanchor: 'bottom', font: {size: 11}};
  const title = {...layout.title, font: {size: 13}}, margin = {...layout.margin, t: 48};
  return {...layout, title, margin, legend: below, font: {...layout.font, size: 11}};
}

async function draw(light = false) {
  for (const figure of plots) {
    const spec = figure.spec ??= JSON.parse(figure.querySelector('script').textContent);
    const canvas = figure.querySelector('.canvas');
    const config = {...spec.config, responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: ''};
    await Plotly.react(canvas, {data: spec.data, layout: fitted(coloured(spec.layout, light), canvas.clientWidth), config});
    if (spec.frames && !figure.dataset.drawn) await Plotly.addFrames(canvas, spec.frames);
    figure.dataset.drawn = canvas.data.length;
  }
}

if (plots.length) {
  draw();
  dark.addEventListener('change', () => draw());
  addEventListener('beforeprint', () => draw(true));
  addEventListener('afterprint', () => draw());
}

const codeSwitch = document.getElementById('code-switch');
codeSwitch?.addEventListener('click', () => {
  const show = codeSwitch.getAttribute('aria-pressed') !== 'true';
  document.querySelectorAll('details.code').forEach(block => { block.open = show; });
  codeSwitch.setAttribute('aria-pressed', show);
  codeSwitch.textContent = show ? 'Hide all code' : 'Show all code';
});
if (innerWidth < 960) document.querySelector('.toc details').open = false;
