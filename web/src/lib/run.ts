// A run as the console draws it: one list of steps over all rounds, made from a stored trace or from live events.

/** A plan with more steps is drawn small, in a graph as wide as the page. */
export const MANY_STEPS = 12;

export type StepState = 'planned' | 'running' | 'done' | 'failed' | 'skipped' | 'cancelled' | 'waiting' | 'kept';

export type ViewStep = {
  index: number;
  worker: string;
  subtask: string;
  access: number[];
  state: StepState;
  round: number;
  text: string;
  startedS: number | null;
  endedS: number | null;
  costUsd: number;
  inputTokens: number;
  outputTokens: number;
  cachedTokens: number;
  attempts: number;
  error: string;
  plannedWorker: string;
  lowUsd?: number;
  highUsd?: number;
  expectedS?: number;
  checks?: { after: number; confidence: number | null }[];
};

export type Message = { role: string; content?: string | Part[]; name?: string; tool_calls?: { id: string; name: string; arguments: string }[] };
export type Part = { type: 'text'; text: string } | { type: 'image'; url?: string; data?: string; media_type?: string };
export type Usage = { input_tokens: number; output_tokens: number; cached_input_tokens: number; reasoning_tokens: number };
export type Attempt = { worker: string; seconds: number; usage: Usage; cost_usd: number; error: string; cached: boolean };
export type StepRecord = {
  index: number;
  worker: string;
  subtask: string;
  access: number[];
  status: StepState;
  messages: Message[];
  reply: { text: string; model: string; reasoning: string; finish: string; tool_calls: { id: string; name: string; arguments: string }[] } | null;
  attempts: Attempt[];
  started_s: number;
  ended_s: number;
  error: string;
  planned_worker: string;
  tool_traffic: Message[];
  round: number;
  checks?: { after: number; confidence: number | null }[];
};
export type Draft = { planner: string; text: string; messages: Message[]; attempts: Attempt[]; started_s: number; ended_s: number; error: string; reason?: { why: string } | null };
export type Trace = {
  id: string;
  created_at: string;
  question: Message[];
  pool: { name: string; about: string; model: string }[];
  planner: string;
  profile: string;
  rounds: { drafts: Draft[]; plan: { steps: { worker: string; subtask: string; access: number[] }[]; first?: number; until?: number | null } | null; steps: StepRecord[]; fallback: boolean }[];
  status: string;
  answer: string;
  error: string;
  error_said: string;
  seconds: number;
  version: string;
  notes: string[];
  conversation?: string;
};

export function words(message: Message | undefined): string {
  if (!message?.content) return '';
  if (typeof message.content === 'string') return message.content;
  return message.content.map((part) => (part.type === 'text' ? part.text : '[image]')).join('\n');
}

export function questionOf(trace: Trace): string {
  return words(trace.question.findLast((message) => message.role === 'user'));
}

const sum = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0);

/** Old traces count each round's steps from 0: of steps with one number the last round's is shown. */
export function stepsOfTrace(trace: Trace): ViewStep[] {
  const found = new Map<number, ViewStep>();
  for (const [number, round] of trace.rounds.entries()) {
    const first = round.plan?.first ?? 0;
    const records = new Map(round.steps.map((step) => [step.index, step]));
    const planned = round.plan?.steps ?? [];
    for (const [i, step] of planned.entries()) {
      const index = first + i;
      const record = records.get(index);
      found.set(index, record ? viewOf(record) : blank(index, step, number, trace.status === 'failed' ? 'skipped' : 'planned'));
    }
  }
  return [...found.values()];
}

export function blank(
  index: number,
  step: { worker: string; subtask: string; access: readonly number[] },
  round = 0,
  state: StepState = 'planned',
): ViewStep {
  return {
    index, worker: step.worker, subtask: step.subtask, access: [...step.access], state, round, text: '',
    startedS: null, endedS: null, costUsd: 0, inputTokens: 0, outputTokens: 0, cachedTokens: 0, attempts: 0, error: '', plannedWorker: '',
  };
}

function viewOf(step: StepRecord): ViewStep {
  const kept = step.status === 'done' && step.attempts.length === 0 && step.ended_s === 0;
  return {
    index: step.index, worker: step.worker, subtask: step.subtask, access: [...step.access], round: step.round,
    state: kept ? 'kept' : step.status,
    text: step.reply?.text ?? '',
    startedS: kept ? null : step.started_s,
    endedS: kept ? null : step.ended_s,
    costUsd: sum(step.attempts.map((attempt) => attempt.cost_usd)),
    inputTokens: sum(step.attempts.map((attempt) => attempt.usage.input_tokens)),
    outputTokens: sum(step.attempts.map((attempt) => attempt.usage.output_tokens)),
    cachedTokens: sum(step.attempts.map((attempt) => attempt.usage.cached_input_tokens)),
    attempts: step.attempts.length,
    error: step.error,
    plannedWorker: step.planned_worker,
    checks: step.checks,
  };
}

export const untilOf = (trace: Trace): number | null => trace.rounds.findLast((round) => round.plan)?.plan?.until ?? null;
export const costOf = (trace: Trace) =>
  sum(trace.rounds.flatMap((round) => [...round.drafts, ...round.steps].flatMap((part) => part.attempts.map((a) => a.cost_usd))));
export const tokensOf = (trace: Trace) =>
  sum(trace.rounds.flatMap((round) => [...round.drafts, ...round.steps].flatMap((part) => part.attempts.map((a) => a.usage.input_tokens + a.usage.output_tokens))));

/** Steps on the longest chain in seconds: those that decide how long the run took. */
export function criticalPath(steps: ViewStep[]): Set<number> {
  const by = new Map(steps.map((step) => [step.index, step]));
  const ends = new Map<number, { s: number; from: number | null }>();
  for (const step of steps) {
    let best: { s: number; from: number | null } = { s: 0, from: null };
    for (const j of step.access) {
      const end = ends.get(j);
      if (end && end.s >= best.s) best = { s: end.s, from: j };
    }
    const own = step.endedS !== null && step.startedS !== null ? step.endedS - step.startedS : (step.expectedS ?? 1);
    ends.set(step.index, { s: best.s + Math.max(own, 1e-6), from: best.from });
  }
  let at: number | null = null;
  for (const [index, end] of ends) if (at === null || end.s > ends.get(at)!.s) at = index;
  const path = new Set<number>();
  while (at !== null && by.has(at)) {
    path.add(at);
    at = ends.get(at)?.from ?? null;
  }
  return path;
}

/** The state of a run that is watched. Every event gives a new one, so that Svelte sees the change. */
export type Live = {
  id: string;
  model: string;
  planner: string;
  phase: 'starting' | 'planning' | 'working' | 'reconnecting' | 'over';
  steps: ViewStep[];
  plannedUsd: number;
  rejected: string[];
  lastIndex: number;
  until: number | null;
  status: string;
  answer: string;
  error: string;
  costUsd: number;
  seconds: number;
};

export const fresh = (id: string): Live => ({
  id, model: '', planner: '', phase: 'starting', steps: [], plannedUsd: 0, rejected: [], lastIndex: -1, until: null, status: '', answer: '', error: '', costUsd: 0, seconds: 0,
});

/* eslint-disable @typescript-eslint/no-explicit-any */
export function advance(live: Live, kind: string, data: any, nowS: number): Live {
  switch (kind) {
    case 'run':
      return { ...fresh(live.id), model: data.model, planner: data.planner, phase: 'planning', steps: data.kept.map((k: any) => ended(k, 'kept')) };
    case 'drafted':
      return { ...live, plannedUsd: live.plannedUsd + data.cost_usd, rejected: data.error ? [...live.rejected, data.error] : live.rejected };
    case 'planned': {
      const known = new Map(live.steps.map((step) => [step.index, step]));
      const steps = data.steps.map((step: any) => known.get(step.index) ?? blank(step.index, step, data.round));
      const before = live.steps.filter((step) => !data.steps.some((one: any) => one.index === step.index));
      const lastIndex = data.steps.length ? data.steps[data.steps.length - 1].index : live.lastIndex;
      return { ...live, phase: 'working', steps: [...before, ...steps], lastIndex, until: data.until ?? null };
    }
    case 'step_started':
      return changed(live, data.index, { state: 'running', worker: data.worker, startedS: nowS });
    case 'step_delta':
      return changed(live, data.index, (step) => ({ text: step.text + data.text, state: 'running' }));
    case 'step_checked':
      return changed(live, data.index, (step) => ({ checks: [...(step.checks ?? []), { after: data.after, confidence: data.confidence }] }));
    case 'step_reassigned':
      return changed(live, data.index, { text: '', worker: data.to, plannedWorker: data.worker, error: data.error });
    case 'step_ended': {
      const next = ended(data.step);
      next.round = data.round;
      return { ...live, steps: live.steps.map((step) => (step.index === next.index ? { ...step, ...next } : step)) };
    }
    case 'ended':
      if (data === null) return { ...live, phase: 'over', status: 'failed', error: 'The run failed before it began.' };
      return { ...live, phase: 'over', status: data.status, answer: data.answer, error: data.error, costUsd: data.cost_usd, seconds: data.seconds };
    case 'gone':
      return { ...live, phase: 'over', status: 'failed', error: 'This run is not known here any more.' };
    case 'reconnecting':
      return { ...live, phase: 'reconnecting' };
  }
  return live;
}

function ended(data: any, state?: StepState): ViewStep {
  const step = data.step;
  return {
    index: data.index, worker: step.worker, subtask: step.subtask, access: step.access, round: 0,
    state: state ?? (step.status as StepState), text: data.text,
    startedS: state === 'kept' ? null : data.started_s, endedS: state === 'kept' ? null : data.ended_s,
    costUsd: step.cost_usd, inputTokens: step.input_tokens, outputTokens: step.output_tokens, cachedTokens: data.cached_input_tokens,
    attempts: data.attempts, error: step.error, plannedWorker: step.planned_worker, checks: data.checks,
  };
}

function changed(live: Live, index: number, change: Partial<ViewStep> | ((step: ViewStep) => Partial<ViewStep>)): Live {
  const steps = live.steps.map((step) => (step.index === index ? { ...step, ...(typeof change === 'function' ? change(step) : change) } : step));
  return { ...live, steps, phase: live.phase === 'reconnecting' ? 'working' : live.phase };
}

/** The words of the answer so far: those of the last step of the newest plan. */
export const answerSoFar = (live: Live): string =>
  live.phase === 'over' && live.answer ? live.answer : (live.steps.find((step) => step.index === live.lastIndex)?.text ?? '');

export const costSoFar = (live: Live): number =>
  live.phase === 'over' ? live.costUsd : live.plannedUsd + sum(live.steps.map((step) => step.costUsd));
