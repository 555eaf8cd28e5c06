// Money, time and counts as people read them.

export function usd(amount: number | null | undefined): string {
  if (amount === null || amount === undefined) return '–';
  if (amount === 0) return '$0';
  if (amount < 0.000001) return '<$0.000001';
  if (amount < 0.01) return '$' + amount.toFixed(6).replace(/0{1,3}$/, '');
  if (amount < 1) return '$' + amount.toFixed(4);
  return '$' + amount.toLocaleString('en', { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

export function seconds(s: number | null | undefined): string {
  if (s === null || s === undefined) return '–';
  if (s < 0.0995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${String(Math.round(s % 60)).padStart(2, '0')} s`;
  return `${(s / 3600).toFixed(1)} h`;
}

export const count = (n: number) => n.toLocaleString('en');

export function tokens(n: number): string {
  if (n < 10_000) return count(n);
  if (n < 1e6) return `${(n / 1000).toFixed(n < 1e5 ? 1 : 0)}k`;
  return `${(n / 1e6).toFixed(1)}M`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit' });
const day = new Intl.DateTimeFormat(undefined, { month: 'short', day: 'numeric' });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });

export function when(iso: string): string {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return iso;
  const today = new Date().toDateString() === at.toDateString();
  return today ? clock.format(at) : `${day.format(at)}, ${clock.format(at)}`;
}

export function whenExactly(iso: string): string {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? iso : whole.format(at);
}

export const plural = (n: number, one: string, many = one + 's') => `${count(n)} ${n === 1 ? one : many}`;
export const percent = (share: number) => `${Math.round(share * 100)}%`;

/** A hue for a name, the same everywhere. */
export function hue(name: string): number {
  let h = 0;
  for (const c of name) h = (h * 31 + c.codePointAt(0)!) >>> 0;
  return (h * 47) % 360;
}
