// Who is signed in. The key itself is never kept: the browser holds a cookie that no script can read.
import { api } from './api';
import type { components } from './openapi';

export type SignedIn = Required<components['schemas']['SignedIn']>;

class Session {
  who = $state<SignedIn | null>(null);
  state = $state<'asking' | 'in' | 'out' | 'away'>('asking');
  said = $state('');
  csrf = '';

  get isAdmin() {
    return this.who?.role === 'admin';
  }

  async ask() {
    try {
      this.take(await api<SignedIn>('GET', '/v1/session'));
    } catch (error) {
      if ((error as { status?: number }).status !== 401) {
        this.state = 'away';
        this.said = (error as Error).message;
      }
    }
  }

  async signIn(key: string) {
    this.take(await api<SignedIn>('POST', '/v1/session', undefined, key));
  }

  async signOut() {
    await api('DELETE', '/v1/session');
    this.lost('You are signed out.');
  }

  lost(said = '') {
    if (this.state === 'in') this.said = said || 'Your session is over. Sign in again to go on.';
    this.who = null;
    this.csrf = '';
    this.state = 'out';
  }

  private take(who: SignedIn) {
    this.who = who;
    this.csrf = who.csrf_token;
    this.state = 'in';
    this.said = '';
  }
}

export const session = new Session();
