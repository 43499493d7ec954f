/* The bandit explorer: watch a bandit decide, play by play. One ES module without dependencies: JupyterLab loads it
 * as an anywidget, an exported page carries it inline, and the tests run its arithmetic in node.
 *
 * The arithmetic repeats native/src/ace operation by operation (IEEE doubles, 64-bit integers as BigInt), so one
 * seed gives one history here and there; tests/test_explorer.py holds the two against each other. */

// ---------------------------------------------------------------- arithmetic.c

const M64 = (1n << 64n) - 1n;

/* SplitMix64. */
class Random {
  constructor(seed) { this.state = BigInt(seed) & M64; }
  bits() {
    this.state = (this.state + 0x9e3779b97f4a7c15n) & M64;
    let z = this.state;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & M64;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & M64;
    return z ^ (z >> 31n);
  }
  uniform() { return Number(this.bits() >> 11n) * 2 ** -53; }
  below(n) { return Math.trunc(this.uniform() * n); }
  normal() {
    for (;;) {
      const x = 2 * this.uniform() - 1, y = 2 * this.uniform() - 1, s = x * x + y * y;
      if (s > 0 && s < 1) return x * Math.sqrt(-2 * naturalLog(s) / s);
    }
  }
}

/* Seed of one stream of a run; the rewards of replication r draw from stream 2r, its learner from 2r + 1. */
function stream(seed, number) {
  const start = new Random(seed).bits() + BigInt(number) * 0xd1342543de82ef95n;
  return new Random(start).bits();
}

const word = new DataView(new ArrayBuffer(8));
const LN2_HIGH = 0.6931471805582987, LN2_LOW = 1.6465949582897082e-12;

function naturalLog(x) {
  word.setFloat64(0, x);
  const bits = word.getBigInt64(0), k = (bits - 0x3fe6a09e667f3bcdn) >> 52n;
  word.setBigInt64(0, bits - (k << 52n));
  const f = word.getFloat64(0) - 1, s = f / (2 + f), z = s * s, z2 = z * z, z4 = z2 * z2;
  const low = (2 / 3 + 2 / 5 * z) + (2 / 7 + 2 / 9 * z) * z2;
  const high = (2 / 11 + 2 / 13 * z) + (2 / 15 + 2 / 17 * z) * z2 + (2 / 19 + 2 / 21 * z) * z4;
  const r = (low + high * z4) * z, e = Number(k);
  return e * LN2_HIGH - ((s * (f - r) - e * LN2_LOW) - f);
}

/* e^x: x = k ln 2 + r, and a series for r. */
function exponential(x) {
  x = Math.min(Math.max(x, -700), 700);
  const k = Math.trunc(x * Math.LOG2E + (x < 0 ? -0.5 : 0.5)), r = (x - k * LN2_HIGH) - k * LN2_LOW;
  let sum = 1;
  for (let n = 14; n > 0; n--) sum = 1 + sum * r / n;
  word.setFloat64(0, sum);
  word.setBigInt64(0, word.getBigInt64(0) + (BigInt(k) << 52n));
  return word.getFloat64(0);
}

// ---------------------------------------------------------------- policy.c: indices, picks, and what else is learned

const mean = (b, i) => b.mean[i];
const state = (b, i) => b.state[i];
const ucb = (b, i) =>
  b.mean[i] + b.rule.explore * (b.scale * Math.sqrt(b.rule.factor * b.rule.xi * naturalLog(b.remembered) / b.weight[i]));

function tuned(b, i) {
  const n = b.weight[i], t = naturalLog(b.steps), variance = b.state[i] / n - b.mean[i] * b.mean[i] + Math.sqrt(2 * t / n);
  return b.mean[i] + b.rule.explore * Math.sqrt(t / n * (variance < 0 ? 0 : variance < 0.25 ? variance : 0.25));
}

/* The largest q with n kl(mean, q) <= ln t, by Newton's steps from the right. */
function kl(b, i) {
  const p = Math.max(b.mean[i], 0), d = b.rule.explore * naturalLog(b.steps) / b.weight[i];
  if (p >= 1 || d <= 0) return b.mean[i];
  const entropy = (p > 0 ? p * naturalLog(p) : 0) + (1 - p) * naturalLog(1 - p);
  let q = Math.min(p + Math.sqrt(0.5 * d), 1 - exponential((entropy - d) / (1 - p)));
  for (let step = 0; step < 50 && q > p && q < 1; step++) {
    const excess = entropy - (p > 0 ? p * naturalLog(q) : 0) - (1 - p) * naturalLog(1 - q) - d;
    if (excess < 1e-13) break;
    q -= excess * q * (1 - q) / (q - p);
  }
  return q;
}

/* The arm of the highest index among those in the running; ties: the first of them. */
function highest(b) {
  let choice = 0, best = -Infinity;
  for (const i of b.rule.among(b)) {
    const index = b.index(i);
    if (index > best) [choice, best] = [i, index];
  }
  return choice;
}

const everyArm = (b) => [...b.pulls.keys()];
const alive = (b) => everyArm(b).filter((i) => b.state[i] === 0);

/* The best arm so far and its neighbours; the best one alone where less than `least` is left to win. Until the
 * noise is known, the next arm up is played once instead, and only where ten times as much is left to win. */
function nearest(b) {
  const known = b.rule.scale > 0 || b.known;
  let leader = b.current;
  for (let i = 0; i < b.arms; i++)
    if (b.weight[i] > 0 && (b.weight[leader] <= 0 || b.mean[i] > b.mean[leader])) leader = i;
  if (b.weight[leader] <= 0 || 1 - b.mean[leader] < b.rule.least * (known ? 1 : 10)) return [leader];
  if (known) return [leader, leader + 1, leader - 1].filter((i) => i >= 0 && i < b.arms);
  return [leader + 1 < b.arms && b.weight[leader + 1] <= 0 ? leader + 1 : leader];
}

function greedy(b) {
  const choice = highest(b);
  if (b.weight[choice] <= 0) return choice;
  return b.random.uniform() < b.rule.explore * b.rule.epsilon ? b.random.below(b.arms) : choice;
}

function sampled(b) {
  for (let i = 0; i < b.arms; i++) {
    if (b.weight[i] <= 0) return i;
    b.state[i] = b.mean[i] + b.rule.explore * b.scale * b.random.normal() / Math.sqrt(b.weight[i]);
  }
  return highest(b);
}

/* Exp3: state holds the logarithms of the weights. */
function probability(b, i) {
  const top = Math.max(...b.state), mix = b.rule.explore * b.rule.mix;
  const total = b.state.reduce((sum, s) => sum + exponential(s - top), 0);
  return (1 - mix) * exponential(b.state[i] - top) / total + mix / b.arms;
}

function drawn(b) {
  let u = b.random.uniform();
  for (let i = 0; i < b.arms - 1; i++) if ((u -= probability(b, i)) < 0) return i;
  return b.arms - 1;
}

function weigh(b, arm, reward) {
  b.state[arm] += b.rule.explore * b.rule.mix / b.arms * Math.min(Math.max(reward, 0), 1) / probability(b, arm);
}

/* Elo: a match is two plays, of two arms drawn at random; stage 0: draw, 1: the first plays, 2: its rival. */
const rating = (b, i) => 1500 + b.state[i];

function match(b) {
  if (b.steps >= b.rule.explore * b.rule.budget) return highest(b);
  if (b.stage === 0) {
    b.current = b.random.below(b.arms);
    b.rival = b.random.below(b.arms - 1);
    b.rival += b.rival >= b.current;
    b.stage = 1;
  }
  return b.stage === 1 ? b.current : b.rival;
}

function rate(b, arm, reward) {
  if (b.stage === 1 && arm === b.current) [b.previous, b.stage] = [reward, 2];
  else if (b.stage === 2 && arm === b.rival) {
    const expected = 1 / (1 + exponential((b.state[arm] - b.state[b.current]) * (2.302585092994046 / 400)));
    const points = b.rule.k * ((b.previous > reward ? 1 : b.previous < reward ? 0 : 0.5) - expected);
    b.state[b.current] += points;
    b.state[arm] -= points;
    b.stage = 0;
  }
}

/* Successive halving: state 1 is out; stage counts the plays that each arm still in shall have. */
function halving(b) {
  const rounds = Math.ceil(Math.log2(b.arms));
  const share = () => Math.max(1, Math.trunc(b.rule.explore * b.rule.budget / (alive(b).length * rounds)));
  b.stage ||= share();
  for (;;) {
    const least = alive(b).reduce((a, i) => (b.weight[i] < b.weight[a] ? i : a));
    if (alive(b).length === 1 || b.weight[least] < b.stage) return least;
    for (let drop = alive(b).length >> 1; drop > 0; drop--)
      b.state[alive(b).reduce((a, i) => (b.mean[i] <= b.mean[a] ? i : a))] = 1;
    b.stage += share();
  }
}

/* The rules, by their names in the policy table: the index of an arm that was played, which arms are in the running,
 * the pick (else the highest index among them), what is learned beside the means, what the index `shows` where it is
 * not of the mean's kind, presets. */
const RULES = {
  "ucb1": { index: ucb, scale: 1 },
  "ucb1-tuned": { index: tuned, learn: (b, arm, reward) => { b.state[arm] += reward * reward; } },
  "ucb-scaled": { index: ucb, scale: 0 },
  "ucb-near": { index: ucb, among: nearest, scale: 0, gamma: 0.98, least: 0.005 },
  "ucb-restart": { index: ucb, scale: 0, restart: 8 },
  "ucb-recall": { index: ucb, scale: 0, restart: 4, recall: 4 },
  "d-ucb": { index: ucb, factor: 4, gamma: 0.9975, xi: 0.5, scale: 1 },
  "kl-ucb": { index: kl },
  "epsilon-greedy": { index: mean, pick: greedy, epsilon: 0.1 },
  "thompson-gaussian": { index: state, pick: sampled, scale: 0 },
  "exp3": { index: probability, pick: drawn, learn: weigh, shows: "probability", mix: 0.1 },
  "elo": { index: rating, pick: match, learn: rate, shows: "rating", budget: 600, k: 32 },
  "halving": { index: mean, among: alive, pick: halving, budget: 600 },
  "round-robin": { index: mean, pick: (b) => b.steps % b.arms },
};
const UNUSED = { among: everyArm, pick: highest, factor: 1, xi: 2, gamma: 1, arm: 0, restart: 0, slack: 0.5, recall: 0, explore: 1 };

// ---------------------------------------------------------------- bandit.c

const MEMORY = ["weight", "sum", "mean"];

export class Bandit {
  /* parameters: those of the C policy, and explore: a factor of every bonus (of epsilon, mix or budget where
   * there is none). */
  constructor(policy, arms, seed, parameters = {}) {
    Object.assign(this, { arms, rule: { ...UNUSED, ...RULES[policy], ...parameters } });
    this.random = new Random(seed);
    this.pulls = new Array(arms).fill(0);
    this.last = new Array(arms).fill(0);
    this.squares = this.differences = this.restarts = this.shelf = 0;
    this.regimes = [];
    this.forget();
  }

  forget() {
    this.steps = this.stage = this.previous = this.rival = 0;
    this.current = Math.min(this.rule.arm, this.arms - 1);
    this.probation = null; // the arm whose next reward says which regime it is
    for (const name of [...MEMORY, "state", "rise", "fall"])
      this[name] = new Array(this.arms).fill(0);
  }

  get noise() { return this.differences > 0 ? Math.sqrt(0.5 * this.squares / this.differences) : 0; }

  get known() { return this.differences >= this.arms; }

  get scale() {
    if (this.rule.scale > 0) return this.rule.scale;
    return this.known ? this.noise : 1;
  }

  get remembered() { return this.rule.gamma === 1 ? this.steps : this.weight.reduce((a, w) => a + w, 0); }

  /* Infinite for an arm not played yet, except ratings and probabilities. */
  index(i) { return this.weight[i] > 0 || this.rule.shows ? this.rule.index(this, i) : Infinity; }

  select() { return this.probation ?? this.rule.pick(this); }

  changed(arm, reward) {
    const noise = this.noise;
    if (this.weight[arm] < 8 || noise === 0) return false;
    const z = (reward - this.mean[arm]) / noise;
    const rise = this.rise[arm] + z - this.rule.slack, fall = this.fall[arm] - z - this.rule.slack;
    this.rise[arm] = Math.max(rise, 0);
    this.fall[arm] = Math.max(fall, 0);
    return rise > this.rule.restart || fall > this.rule.restart;
  }

  /* The rewards seem to have changed. With recall, what is known goes on a shelf, and the arm is played again. */
  begin(arm) {
    const known = { steps: this.steps };
    for (const name of MEMORY) known[name] = this[name];
    this.forget();
    if (!this.rule.recall) this.restarts++;
    else [this.regimes[this.shelf], this.probation] = [known, arm];
  }

  /* The shelf whose mean of the arm is nearest to the reward and within three standard errors of it; -1: none. */
  matching(arm, reward) {
    let nearest = 3, shelf = -1;
    this.regimes.forEach(({ weight, mean }, i) => {
      if (weight[arm] <= 0) return;
      const distance = Math.abs((reward - mean[arm]) / (this.noise * Math.sqrt(1 + 1 / weight[arm])));
      if (distance < nearest) [nearest, shelf] = [distance, i];
    });
    return shelf;
  }

  end(arm, reward) {
    const before = this.shelf, match = this.matching(arm, reward), kept = this.regimes.length;
    this.probation = null;
    if (match >= 0) {
      for (const name of MEMORY) this[name] = [...this.regimes[match][name]];
      this.steps = this.regimes[match].steps;
    }
    this.shelf = match >= 0 ? match : kept < this.rule.recall ? kept : (before + 1) % this.rule.recall;
    this.restarts += match !== before;
  }

  update(arm, reward) {
    if (this.pulls[arm] > 0) {
      const step = reward - this.last[arm], square = step * step, four = 16 * this.squares;
      const wild = this.known && four > 0 && square * this.differences > four;
      this.squares += wild ? four / this.differences : square;
      this.differences++;
    }
    this.last[arm] = reward;
    this.pulls[arm]++;
    if (this.rule.restart > 0) {
      if (this.probation !== null) this.end(arm, reward);
      else if (this.changed(arm, reward)) this.begin(arm);
      if (this.probation !== null) return;
    }
    if (this.rule.gamma !== 1)
      for (let i = 0; i < this.arms; i++) for (const row of [this.weight, this.sum]) row[i] *= this.rule.gamma;
    this.weight[arm]++;
    this.sum[arm] += reward;
    this.mean[arm] = this.sum[arm] / this.weight[arm];
    this.steps++;
    this.rule.learn?.(this, arm, reward);
  }
}

// ---------------------------------------------------------------- simulate.c

function draw(mean, noise, random) {
  if (noise === "bernoulli") return random.uniform() < mean ? 1 : 0;
  return noise > 0 ? mean + noise * random.normal() : mean;
}

/* One run, kept whole: what the bandit thought before each play (mean, bonus: [play * arms + arm]), what it
 * chose and got, regret so far. An index that is a rating or a probability stands in the mean's place. pieces:
 * [{start, means}], ascending; noise: standard deviation of Gaussian rewards, or "bernoulli". */
export function simulate({ policy, parameters, pieces, noise, horizon, seed }) {
  const arms = pieces[0].means.length, rewards = new Random(stream(seed, 0));
  const bandit = new Bandit(policy, arms, stream(seed, 1), parameters);
  const run = { arms, horizon, pieces, shows: bandit.rule.shows, among: [], arm: [], reward: [], regret: [0], best: [0], restarts: [], scale: [], probation: [],
    mean: new Float64Array(horizon * arms), bonus: new Float64Array(horizon * arms) };
  let piece = 0;
  for (let t = 0; t < horizon; t++) {
    while (piece + 1 < pieces.length && t >= pieces[piece + 1].start) piece++;
    const means = pieces[piece].means, top = Math.max(...means), arm = bandit.select();
    for (let i = 0; i < arms; i++) {
      const level = run.shows ? bandit.index(i) : bandit.mean[i];
      run.mean[t * arms + i] = level;
      run.bonus[t * arms + i] = bandit.index(i) - level;
    }
    const reward = draw(means[arm], noise, rewards);
    run.among.push(bandit.rule.among(bandit));
    run.scale.push(bandit.rule.scale === undefined ? null : bandit.scale);
    run.probation.push(bandit.probation !== null);
    const before = bandit.restarts;
    bandit.update(arm, reward);
    if (bandit.restarts > before) run.restarts.push(t + 1);
    run.arm.push(arm);
    run.reward.push(reward);
    run.regret.push(run.regret[t] + top - means[arm]);
    run.best.push(run.best[t] + (means[arm] === top));
  }
  return run;
}

/* A recorded run: rows [{arm, reward, mean: [arms], index: [arms], phase, note}], one a decision: what the learner
 * held of every arm (null: not played yet), the arm that it chose, and the reward that came of it (null: not known). */
function recorded(rows) {
  const arms = rows[0].mean.length, horizon = rows.length;
  const run = { arms, horizon, pieces: null, rows, among: rows.map((row) => [...row.mean.keys()]), arm: [], reward: [], restarts: [],
    mean: new Float64Array(horizon * arms), bonus: new Float64Array(horizon * arms) };
  rows.forEach((row, t) => {
    for (let i = 0; i < arms; i++) {
      run.mean[t * arms + i] = row.mean[i] ?? 0;
      run.bonus[t * arms + i] = row.index[i] === null || row.mean[i] === null ? Infinity : row.index[i] - row.mean[i];
    }
    run.arm.push(row.arm);
    run.reward.push(row.reward);
    if (t > 0 && row.phase !== rows[t - 1].phase) run.restarts.push(t);
  });
  run.level = smoothed(run.reward, Math.max(1, Math.round(horizon / 60)));
  return run;
}

/* Mean of the rewards around each decision, `reach` to either side; [decisions + 1] like a regret: the decision is
 * t - 1. The last reward is not known, so its neighbours' stand for it. */
function smoothed(rewards, reach) {
  return Array.from({ length: rewards.length + 1 }, (_, t) => {
    const near = rewards.slice(Math.max(0, t - 1 - reach), t + reach).filter((r) => r !== null);
    return near.reduce((a, r) => a + r, 0) / near.length;
  });
}

// ---------------------------------------------------------------- what can be chosen

const CHOICES = { // name in the list -> rule and parameters
  "UCB1": ["ucb1", {}],
  "UCB1-tuned": ["ucb1-tuned", {}],
  "UCB scaled by the noise": ["ucb-scaled", {}],
  "scaled, neighbours only": ["ucb-near", {}],
  "scaled, restart on a change": ["ucb-restart", {}],
  "scaled, recalls earlier phases": ["ucb-recall", {}],
  "discounted (D-UCB), scaled": ["d-ucb", { scale: 0, gamma: 0.98 }],
  "KL-UCB": ["kl-ucb", {}],
  "ε-greedy": ["epsilon-greedy", {}],
  "Thompson, Gaussian": ["thompson-gaussian", {}],
  "Exp3": ["exp3", {}],
  "Elo, then its winner": ["elo", {}],
  "successive halving": ["halving", {}],
  "round-robin": ["round-robin", {}],
};
const DRIFTS = ["none", "best arm changes half-way", "best arm moves on, four times", "two phases alternate, twelve times"];
const PIECES = [1, 2, 5, 12]; // of constant means, by drift

const spread = (low, high, arms) => Array.from({ length: arms }, (_, i) => low + (high - low) * i / (arms - 1));
const turned = (means, by) => means.map((_, i) => means[(i + by) % means.length]);

/* Means over time: the set of means, and the drift that moves them from arm to arm. With five arms or more, no
 * phase returns where the best arm moves on. */
export function pieces({ means, arms, drift, horizon }) {
  const given = arms === means.length ? means : spread(Math.min(...means), Math.max(...means), arms);
  const rounds = (k) => arms > 2 && arms % 2 === 0 ? k >> 1 : 0; // moving by half of the arms twice returns
  const times = PIECES[DRIFTS.indexOf(drift)], back = [...given].reverse();
  const at = (k) => drift !== DRIFTS[3] ? turned(given, k * Math.floor(arms / 2) + rounds(k)) : k % 2 ? back : given;
  return Array.from({ length: times }, (_, k) => ({ start: Math.floor(k * horizon / times), means: at(k) }));
}

// ---------------------------------------------------------------- drawing

const MEAN = "#2a7fc1", CHOSEN = "#d55e00", OTHER = "#0a9468", FAINT = "rgba(128,134,144,0.28)";

const STYLE = `
:host { display: block; color-scheme: light dark; }
section { font: 14px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; color: var(--jp-ui-font-color1, inherit); max-width: 60rem; }
.knobs { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(13rem, 100%), 1fr)); gap: .5rem 1rem; margin-bottom: .7rem; }
.knobs label, .time label { display: flex; flex-direction: column; font-size: .85em; gap: .1rem; }
.knobs output { font-variant-numeric: tabular-nums; font-weight: 600; }
select, input[type=number], button { font: inherit; color: inherit; background: transparent; border: 1px solid ${FAINT}; border-radius: 5px; padding: .2rem .5rem; min-height: 2rem; box-sizing: border-box; }
option { color: CanvasText; background: Canvas; }
button { cursor: pointer; min-width: 2.6rem; } button:hover { border-color: currentColor; }
:focus-visible { outline: 2px solid ${MEAN}; outline-offset: 2px; }
input[type=range] { width: 100%; accent-color: ${CHOSEN}; margin: .3rem 0; }
.time { display: grid; grid-template-columns: auto 1fr; gap: .3rem .8rem; align-items: end; margin: .4rem 0; }
.time div { display: flex; gap: .3rem; }
@media (max-width: 34rem) { .time { grid-template-columns: 1fr; } }
.said { min-height: 2.9em; margin: .3rem 0; font-variant-numeric: tabular-nums; }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .82em; opacity: .85; margin: 0; }
i { display: inline-block; width: 1em; height: .7em; margin-right: .35em; }
svg { display: block; width: 100%; overflow: visible; } text { fill: currentColor; font-size: 12px; font-variant-numeric: tabular-nums; }
h4 { margin: .9rem 0 .2rem; font-size: .95em; font-weight: 600; }
@media print { .knobs, .time { display: none; } i { print-color-adjust: exact; } h4 { break-after: avoid; } svg { break-inside: avoid; } }
`;

function element(name, attributes = {}, ...children) {
  const node = name.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const shape = (name, attributes, ...children) => element("svg:" + name, attributes, ...children);
const text = (x, y, words, attributes = {}) => shape("text", { x, y, ...attributes }, words);
function digits(x) {
  if (Number.isInteger(x)) return String(x);
  const size = Math.abs(x);
  return size < 0.01 ? x.toPrecision(3) : x.toFixed(size >= 1000 ? 0 : size >= 10 ? 1 : 3);
}

/* Least and largest value worth showing before play t: means, indices and the true means, with a little air. */
function span(run, t, truth) {
  const values = truth ? [...truth] : [];
  for (let i = 0, k = t * run.arms; i < run.arms; i++, k++)
    if (Number.isFinite(run.bonus[k])) values.push(run.mean[k], run.mean[k] + (run.among[t].includes(i) ? run.bonus[k] : 0));
  if (!values.length) return [0, 1];
  const low = Math.min(...values), high = Math.max(...values), air = 0.08 * (high - low || Math.abs(high) || 1);
  return [low - air, high + air];
}

/* The room that a drawing was made for. Paper, which may be narrower and is not told, shrinks it. */
function frame(svg, width, height) {
  svg.setAttribute("height", height);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
}

/* One bar per arm: the mean, the bonus on top of it, where the true mean is, which arm is chosen. */
function drawArms(svg, run, t, { noun, labels }, truth, pulls) {
  const width = svg.clientWidth || 640, narrow = width < 500, row = 30, head = 18, left = 74, right = narrow ? 56 : 96;
  const [low, high] = span(run, t, truth), place = (v) => left + (v - low) / (high - low) * (width - left - right);
  frame(svg, width, head + run.arms * row);
  const words = [text(6, 12, noun), text(left, 12, digits(low)), text((left + width - right) / 2, 12, run.shows || "index", { "text-anchor": "middle" }),
    text(width - right, 12, digits(high), { "text-anchor": "end" }), text(width - right + 8, 12, narrow ? "plays" : "plays · share")];
  svg.replaceChildren(...words, ...labels.flatMap((label, i) => {
    const k = t * run.arms + i, y = head + i * row, known = Number.isFinite(run.bonus[k]), chosen = run.arm[t] === i;
    const beside = truth && place(truth[i]) < (left + width - right) / 2 ? place(truth[i]) : left; // words, not on the mark
    const running = run.among[t].includes(i), mean = place(run.mean[k]), end = known ? place(run.mean[k] + run.bonus[k]) : width - right;
    return [
      chosen && shape("rect", { x: 0, y: y + 1, width, height: row - 2, rx: 4, fill: CHOSEN, opacity: 0.14 }),
      text(6, y + 20, (chosen ? "▶ " : "") + label, chosen ? { "font-weight": 700 } : {}),
      known && shape("rect", { x: left, y: y + 7, width: Math.max(mean - left, 0), height: 16, fill: running ? MEAN : FAINT }),
      running && shape("rect", { x: known ? Math.min(mean, end) : left, y: y + 7, width: known ? Math.abs(end - mean) : end - left,
        height: 16, fill: chosen ? CHOSEN : MEAN, opacity: known ? 0.45 : 0.12 }),
      truth && shape("line", { x1: place(truth[i]), x2: place(truth[i]), y1: y + 3, y2: y + row - 3, stroke: "currentColor", "stroke-width": 2 }),
      running && !known && text(beside + 6, y + 20, narrow ? "index ∞" : "not played yet: index ∞"),
      text(width - right + 8, y + 20, narrow ? String(pulls[i]) : `${pulls[i]} · ${(100 * pulls[i] / Math.max(t, 1)).toFixed(0)} %`),
    ].filter(Boolean);
  }));
}

/* Which arm was played when: one line of ticks per arm; the best arm's line is shaded. */
function drawHistory(svg, run, t, labels) {
  const width = svg.clientWidth || 640, row = 14, left = 74, room = width - left - 4;
  const x = (play) => left + play / run.horizon * room, height = run.arms * row;
  const ticks = run.arm.map((arm, play) => `M${x(play).toFixed(1)} ${arm * row + 2}v${row - 4}`);
  const best = (run.pieces || []).map((piece, k) => {
    const arm = piece.means.indexOf(Math.max(...piece.means)), end = run.pieces[k + 1]?.start ?? run.horizon;
    return shape("rect", { x: x(piece.start), y: arm * row, width: x(end) - x(piece.start), height: row, fill: OTHER, opacity: 0.25 });
  });
  frame(svg, width, height + 18);
  svg.replaceChildren(...best,
    shape("path", { d: ticks.slice(0, t + 1).join(""), stroke: MEAN, "stroke-width": Math.max(1, room / run.horizon), fill: "none" }),
    ...labels.map((label, i) => text(6, i * row + 11, label)),
    ...run.restarts.map((play) => shape("line", { x1: x(play), x2: x(play), y1: 0, y2: height, stroke: "currentColor", "stroke-dasharray": "2 3" })),
    shape("line", { x1: x(t), x2: x(t), y1: 0, y2: height, stroke: CHOSEN, "stroke-width": 2 }),
    text(left, height + 14, "0"), text(width - 4, height + 14, `${run.horizon} plays`, { "text-anchor": "end" }));
}

/* Curves over the plays, [{values, colour, dash}], solid up to play t, faint after. low: where the axis starts. */
function drawCurves(svg, curves, t, horizon, low) {
  const width = svg.clientWidth || 640, height = 150, left = 74, room = width - left - 4;
  const top = Math.max(low + 1e-9, ...curves.map((c) => Math.max(...c.values)));
  const x = (play) => left + play / horizon * room, y = (v) => height - (v - low) / (top - low) * (height - 8);
  const line = (values, from, to) => {
    const step = Math.max(1, Math.floor(horizon / 400)), points = [];
    for (let play = from; play < to; play += step) points.push(`${x(play).toFixed(1)} ${y(values[play]).toFixed(1)}`);
    points.push(`${x(to).toFixed(1)} ${y(values[to]).toFixed(1)}`);
    return "M" + points.join("L");
  };
  const drawn = curves.flatMap(({ values, colour, dash }) => [[0, t, 1], [t, horizon, 0.55]].map(([from, to, opacity]) =>
    shape("path", { d: line(values, from, to), stroke: colour, "stroke-width": 2, "stroke-dasharray": dash, fill: "none", opacity })));
  frame(svg, width, height + 18);
  svg.replaceChildren(shape("line", { x1: left, x2: width - 4, y1: height, y2: height, stroke: FAINT }), ...drawn,
    shape("line", { x1: x(t), x2: x(t), y1: 0, y2: height, stroke: CHOSEN, "stroke-width": 2 }),
    text(6, 14, digits(top)), text(6, height, digits(low)),
    text(left, height + 14, "0"), text(width - 4, height + 14, `${horizon} plays`, { "text-anchor": "end" }));
}

// ---------------------------------------------------------------- the explorer

/* What play t is about, in one sentence. */
function sentence(run, t, { noun, labels }) {
  const arm = run.arm[t], k = t * run.arms, bonus = run.bonus[k + arm], name = `${noun} ${labels[arm]}`;
  const got = run.reward[t] === null ? "" : ` It gives ${digits(run.reward[t])}.`;
  const [unit, is, unknown] = run.pieces
    ? ["Play", "is chosen", "has not been played yet, so it is its turn"]
    : ["Window", "is in force", "is in force; nothing was known of it yet"];
  const head = `${unit} ${t + 1} of ${run.horizon}: `;
  if (run.probation?.[t]) return `${head}${name} is played again: the rewards seem to have changed.${got}`;
  if (!Number.isFinite(bonus)) return `${head}${name} ${unknown}.${got}`;
  const index = (i) => run.mean[k + i] + run.bonus[k + i];
  const running = run.among[t], rest = running.length < run.arms ? ` of the ${running.length} in the running` : "";
  const top = running.every((i) => index(i) <= index(arm)), word = run.shows || (bonus === 0 ? "mean" : "index");
  const what = `${top ? "its" : "though its"} ${word} is ${top ? "" : "not "}the highest${rest}`;
  const sum = bonus === 0 ? "" : `mean ${digits(run.mean[k + arm])} ${bonus < 0 ? "−" : "+"} ${digits(Math.abs(bonus))} = `;
  return `${head}${name} ${is}, ${what}: ${sum}${digits(index(arm))}.${got}`;
}

function soFar(run, t) {
  if (!run.pieces) return run.rows[t].note || "";
  const share = run.best[t + 1] / (t + 1), changes = run.restarts.filter((play) => play <= t).length;
  return `So far the best arm got ${(100 * share).toFixed(0)} % of the plays (chance: ${(100 / run.arms).toFixed(0)} %), `
    + `regret ${digits(run.regret[t + 1])}` + (run.scale[t] === null ? "" : `; unit of the bonus ${digits(run.scale[t])}`)
    + (changes ? `; ${changes} change${changes > 1 ? "s" : ""} detected.` : ".");
}

/* Builds an explorer inside `host`; returns what stops it. options: what hakmem_py/explorer.py hands over. */
export function mount(host, options) {
  const root = host.shadowRoot || host.attachShadow({ mode: "open" });
  const settings = { ...options, arms: options.means?.length, time: 0 };
  let run, rival, timer = null, names;

  const knob = (label, key, input, show = (v) => v) => {
    const value = element("output", {}, String(show(settings[key])));
    input.addEventListener("input", () => {
      settings[key] = input.type === "range" || input.type === "number" ? Number(input.value) : input.value;
      value.textContent = String(show(settings[key]));
      replay();
    });
    return element("label", {}, element("span", {}, label + " ", input.type === "range" ? value : ""), input);
  };
  const list = (key, names) => element("select", {}, ...names.map((n) => element("option", { value: n, selected: n === settings[key] }, n)));
  const slider = (key, min, max, step) => element("input", { type: "range", min, max, step, value: settings[key] });

  const knobs = options.rows ? "" : element("div", { class: "knobs" },
    knob("Policy", "policy", list("policy", Object.keys(CHOICES))),
    knob("Compared with", "rival", list("rival", Object.keys(CHOICES))),
    knob("Exploration ×", "exploration", slider("exploration", 0, 2, 0.05)),
    options.noise === "bernoulli" ? "" : knob("Noise of a reward (sd)", "noise", slider("noise", 0, 0.1, 0.005)),
    knob("Arms", "arms", slider("arms", 2, 10, 1)),
    knob("Drift", "drift", list("drift", DRIFTS)),
    knob("Seed", "seed", element("input", { type: "number", min: 0, max: 999999, value: settings.seed })));

  const drawings = ["arms", "history", "curve"].map((name) => shape("svg", { role: "img", id: name }));
  const [arms, history, curve] = drawings;
  const said = element("p", { class: "said", "aria-live": "polite" });
  const key = element("p", { class: "key" });
  const curveTitle = element("h4");
  const time = element("input", { type: "range", min: 0, value: 0, step: 1, "aria-label": "Play" , oninput: () => go(Number(time.value)) });
  const play = element("button", { type: "button", onclick: () => (timer ? pause() : start()) });
  const speed = element("select", { "aria-label": "Plays a second" }, ...[2, 10, 50, 250].map((n) => element("option", { value: n, selected: n === 50 }, `${n}/s`)));
  const step = (by, words, sign) => element("button", { type: "button", "aria-label": words, title: words, onclick: () => { pause(); go(settings.time + by); } }, sign);

  function name(label, colour, opacity = 1) {
    return element("span", {}, element("i", { style: `background:${colour};opacity:${opacity}` }), label);
  }

  function draw() {
    const t = settings.time, piece = run.pieces?.findLast((p) => p.start <= t);
    const pulls = new Array(run.arms).fill(0);
    for (let play = 0; play < t; play++) pulls[run.arm[play]]++;
    drawArms(arms, run, t, names, run.shows ? null : piece?.means, pulls);
    drawHistory(history, run, t, names.labels);
    if (run.pieces)
      drawCurves(curve, [{ values: run.regret, colour: MEAN }, { values: rival.regret, colour: OTHER, dash: "5 4" }], t + 1, run.horizon, 0);
    else drawCurves(curve, [{ values: run.level, colour: MEAN }], t + 1, run.horizon, Math.min(...run.level));
    said.replaceChildren(sentence(run, t, names), element("br"), soFar(run, t));
    arms.setAttribute("aria-label", said.textContent);
    history.setAttribute("aria-label", `Arm played over time; so far ${names.labels.map((l, i) => `${l}: ${pulls[i]}`).join(", ")}.`);
    curve.setAttribute("aria-label", run.pieces
      ? `Regret over time: ${settings.policy} ends at ${digits(run.regret.at(-1))}, ${settings.rival} at ${digits(rival.regret.at(-1))}.`
      : `Rewards over time, from ${digits(Math.min(...run.level))} to ${digits(Math.max(...run.level))}.`);
    time.value = t;
    time.setAttribute("aria-valuetext", `play ${t + 1} of ${run.horizon}`);
  }

  function go(t) {
    settings.time = Math.max(0, Math.min(run.horizon - 1, t));
    draw();
  }

  function one(choice) {
    const [policy, parameters] = CHOICES[choice];
    return simulate({ policy, parameters: { ...parameters, explore: settings.exploration }, pieces: pieces(settings),
      noise: settings.noise, horizon: settings.horizon, seed: Math.abs(Math.trunc(settings.seed)) }); // any number may be typed
  }

  function replay() {
    run = settings.rows ? recorded(settings.rows) : one(settings.policy);
    rival = settings.rows ? null : one(settings.rival);
    names = settings.labels.length === run.arms ? settings : { noun: "arm", labels: Array.from({ length: run.arms }, (_, i) => String(i)) };
    time.max = run.horizon - 1;
    key.replaceChildren(...(run.shows ? [name(run.shows, MEAN)] : [name("mean of the rewards", MEAN), name("bonus", MEAN, 0.45)]),
      name("chosen now", CHOSEN), ...(run.among.some((arms) => arms.length < run.arms) ? [name("not in the running", FAINT)] : []),
      ...(run.pieces && !run.shows ? [name("true mean", "currentColor")] : []),
      ...(run.pieces ? [name("best arm, below", OTHER, 0.4)] : []),
      ...(run.restarts.length ? [element("span", {}, `┊ ${run.pieces ? "change detected" : "change of phase"}, below`)] : []));
    curveTitle.replaceChildren(...(run.pieces
      ? ["Regret: ", name(settings.policy, MEAN), " ", name(`${settings.rival} (dashed)`, OTHER)]
      : ["Reward, averaged over neighbouring decisions"]));
    go(settings.time);
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶ Play";
    said.setAttribute("aria-live", "polite");
  }

  function start() {
    if (settings.time >= run.horizon - 1) settings.time = 0;
    said.setAttribute("aria-live", "off"); // nobody can listen to fifty decisions a second
    play.textContent = "❚❚ Pause";
    timer = setInterval(() => {
      if (settings.time >= run.horizon - 1) return pause();
      return go(settings.time + Math.max(1, Math.round(speed.value / 25)));
    }, speed.value < 25 ? 1000 / speed.value : 40);
  }
  speed.addEventListener("change", () => { if (timer) { pause(); start(); } });

  root.replaceChildren(element("style", {}, STYLE), element("section", { "aria-label": "Bandit explorer" }, knobs,
    element("div", { class: "time" },
      element("div", {}, step(-1, "one play back", "◀"), play, step(1, "one play on", "▶|"), speed),
      element("label", {}, "Play", time)),
    said, arms, key, element("h4", {}, "Arm played"), history, curveTitle, curve));
  // JupyterLab would take a plain key for a command, as if it were pressed beside the cell: X cuts it out.
  root.addEventListener("keydown", (event) => event.ctrlKey || event.metaKey || event.stopPropagation());
  const watch = new ResizeObserver(() => run && draw());
  pause();
  replay();
  watch.observe(host);
  return () => { pause(); watch.disconnect(); };
}

export default { render: ({ model, el }) => mount(el.appendChild(element("div")), model.get("options")) };
