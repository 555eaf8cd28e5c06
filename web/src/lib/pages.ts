import type { Component } from 'svelte';
import Play from '../pages/Play.svelte';
import Run from '../pages/Run.svelte';
import Runs from '../pages/Runs.svelte';

type Page = { name: string; title: string; icon: string; component: Component; inMenu: boolean; admin?: boolean; under?: string; keyed?: boolean };

export const PAGES: Page[] = [
  { name: 'play', title: 'Play', icon: '▷', component: Play, inMenu: true },
  { name: 'runs', title: 'Runs', icon: '≡', component: Runs, inMenu: true },
  { name: 'run', title: 'Run', icon: '', component: Run, inMenu: false, under: 'runs', keyed: true },
];

export const pageOf = (name: string | undefined): Page => PAGES.find((page) => page.name === name) ?? PAGES[0];
