// The models that may be asked and the workers behind them, fetched once and shared by all pages.
import { get } from './api';

import type { components } from './openapi';

export type ModelCard = components['schemas']['ModelCard'];
export type PoolWorker = Required<components['schemas']['PoolWorker']>

class Pool {
  models = $state<ModelCard[]>([]);
  workers = $state<PoolWorker[]>([]);
  error = $state<unknown>(null);
  loaded = $state(false);

  async load(again = false) {
    if (this.loaded && !again) return;
    try {
      const [models, pool] = await Promise.all([get<{ data: ModelCard[] }>('/v1/models'), get<{ data: PoolWorker[] }>('/v1/pool')]);
      this.models = models.data;
      this.workers = pool.data;
      this.loaded = true;
      this.error = null;
    } catch (error) {
      this.error = error;
    }
  }

  /** Workers that a model's plans may name. */
  workersOf(model: string): string[] {
    return this.models.find((one) => one.id === model)?.workers ?? this.workers.map((one) => one.name);
  }

  expectedS(worker: string): number | undefined {
    return this.workers.find((one) => one.name === worker)?.p50_s ?? undefined;
  }

  priceOf(worker: string): string {
    const price = this.workers.find((one) => one.name === worker)?.price;
    return price ? (price.input || price.output ? `$${price.input} / $${price.output} per M` : 'free') : 'no price';
  }
}

export const pool = new Pool();
