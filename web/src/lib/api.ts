// The one door to the server. Every page reads and writes through `api`; a run is watched through `watchRun`.
import { session } from './session.svelte';

export class ApiError extends Error {
  constructor(
    public status: number,
    message: string,
    public code = '',
    public param = '',
  ) {
    super(message);
  }
}

export async function api<T>(method: string, path: string, body?: unknown, key?: string): Promise<T> {
  const headers: Record<string, string> = { accept: 'application/json' };
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (key) headers.authorization = `Bearer ${key}`;
  else if (session.csrf) headers['x-csrf-token'] = session.csrf;
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: 'no-store',
    });
  } catch {
    throw new ApiError(0, 'The server does not answer. Is it running? This page tries again when you do.');
  }
  const text = await response.text();
  let data: unknown = null;
  try {
    data = JSON.parse(text);
  } catch {
    data = null;
  }
  if (response.ok) return data as T;
  const said = (data as { error?: { message?: string; code?: string; param?: string } } | null)?.error;
  if (response.status === 401 && !key) session.lost();
  throw new ApiError(response.status, said?.message ?? `The server answered ${response.status}.`, said?.code ?? '', said?.param ?? '');
}

export const get = <T>(path: string) => api<T>('GET', path);
export const post = <T>(path: string, body: unknown) => api<T>('POST', path, body);

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type RunEvent = { kind: string; data: any };

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));

/** Watch a run to its end. After a lost connection the events come again from the beginning (`run` is the first). */
export const watchRun = (id: string, on: (event: RunEvent) => void, signal: AbortSignal) => watch(`/v1/runs/${encodeURIComponent(id)}/events`, on, signal, 'ended');

/** Watch all runs as they begin and end. After a lost connection the runs under way come again (`runs` is the first). */
export const watchRuns = (on: (event: RunEvent) => void, signal: AbortSignal) => watch('/v1/runs/events', on, signal);

async function watch(path: string, on: (event: RunEvent) => void, signal: AbortSignal, last = ''): Promise<void> {
  for (let wait = 400; !signal.aborted; wait = Math.min(wait * 2, 5000)) {
    try {
      const response = await fetch(path, { signal, cache: 'no-store' });
      if (response.status === 401) {
        session.lost();
        return;
      }
      if (response.status === 404) {
        on({ kind: 'gone', data: null });
        return;
      }
      if (response.ok && response.body) {
        wait = 400;
        for await (const event of events(response.body)) {
          on(event);
          if (event.kind === last) return;
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      void error;
    }
    if (signal.aborted) return;
    on({ kind: 'reconnecting', data: null });
    await pause(wait);
  }
}

async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<RunEvent> {
  const reader = body.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const frames = rest.split('\n\n');
    rest = frames.pop() ?? '';
    for (const frame of frames) {
      let kind = '';
      let data = '';
      for (const line of frame.split('\n')) {
        if (line.startsWith('event: ')) kind = line.slice(7);
        else if (line.startsWith('data: ')) data += line.slice(6);
      }
      if (kind) yield { kind, data: JSON.parse(data) };
    }
  }
}
