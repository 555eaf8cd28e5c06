import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// Nothing is inlined and no polyfill is added: the content security policy allows scripts and styles from 'self' alone.
export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: '../src/dirigent/console',
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: 'es2022',
    reportCompressedSize: false,
  },
  server: { proxy: { '/v1': 'http://127.0.0.1:8000' } },
});
