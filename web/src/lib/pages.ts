import type { Component } from 'svelte';
import Compare from '../pages/Compare.svelte';
import Keys from '../pages/Keys.svelte';
import Learning from '../pages/Learning.svelte';
import Play from '../pages/Play.svelte';
import Pool from '../pages/Pool.svelte';
import Run from '../pages/Run.svelte';
import Runs from '../pages/Runs.svelte';
import Spend from '../pages/Spend.svelte';

type Page = { name: string; title: string; icon: string; component: Component; inMenu: boolean; admin?: boolean; under?: string; keyed?: boolean };

export const PAGES: Page[] = [
  { name: 'play', title: 'Play', icon: '▷', component: Play, inMenu: true },
  { name: 'runs', title: 'Runs', icon: '≡', component: Runs, inMenu: true },
  { name: 'compare', title: 'Compare', icon: '⇄', component: Compare, inMenu: true, keyed: true },
  { name: 'pool', title: 'Pool', icon: '◎', component: Pool, inMenu: true },
  { name: 'spend', title: 'Spend', icon: '$', component: Spend, inMenu: true },
  { name: 'learning', title: 'Learning', icon: '△', component: Learning, inMenu: true, keyed: true },
  { name: 'keys', title: 'Keys', icon: '⚿', component: Keys, inMenu: true, admin: true },
  { name: 'run', title: 'Run', icon: '', component: Run, inMenu: false, under: 'runs', keyed: true },
];

export const pageOf = (name: string | undefined): Page => PAGES.find((page) => page.name === name) ?? PAGES[0];
