// The place in the console, as the address has it after `#`: `#/runs/7f3a?worker=alpha`. A link is shareable.
class Route {
  path = $state<string[]>([]);
  query = $state<Record<string, string>>({});

  constructor() {
    this.read();
    addEventListener('hashchange', () => this.read());
  }

  read() {
    const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
    this.path = path ? path.split('/').map(safely) : ['play'];
    this.query = Object.fromEntries(new URLSearchParams(query ?? ''));
  }

  go(path: string) {
    location.hash = path;
  }

  /** Change the query without a new entry in the browser's history. */
  narrow(query: Record<string, string>) {
    const kept = Object.fromEntries(Object.entries(query).filter(([, value]) => value !== ''));
    const text = new URLSearchParams(kept).toString();
    history.replaceState(null, '', `#/${this.path.map(encodeURIComponent).join('/')}${text ? '?' + text : ''}`);
    this.query = kept;
  }
}

function safely(text: string) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const route = new Route();
