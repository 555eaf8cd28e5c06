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
  { name: 'play', title: 'Play', icon: 'M5 3.5v13l11-6.5z', component: Play, inMenu: true },
  { name: 'runs', title: 'Runs', icon: 'M3 5h14M3 10h14M3 15h9', component: Runs, inMenu: true },
  { name: 'compare', title: 'Compare', icon: 'M4 7h12l-3-3M16 13H4l3 3', component: Compare, inMenu: true, keyed: true },
  { name: 'pool', title: 'Pool', icon: 'M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM10 7.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5z', component: Pool, inMenu: true },
  { name: 'spend', title: 'Spend', icon: 'M4 16V9M10 16V4M16 16v-5', component: Spend, inMenu: true },
  { name: 'learning', title: 'Learning', icon: 'M3 15l5-6 3 3 6-8M13 4h4v4', component: Learning, inMenu: true, keyed: true },
  { name: 'keys', title: 'Keys', icon: 'M12.5 3.5a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM9.5 10.5L3.5 16.5M5.5 14.5l2 2', component: Keys, inMenu: true, admin: true },
  { name: 'run', title: 'Run', icon: '', component: Run, inMenu: false, under: 'runs', keyed: true },
];

export const pageOf = (name: string | undefined): Page => PAGES.find((page) => page.name === name) ?? PAGES[0];
