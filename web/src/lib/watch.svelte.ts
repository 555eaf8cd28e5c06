// A run that is watched, as state that pages draw.
import { post, watchRun } from './api';
import { advance, fresh, type Live } from './run';

export class Watched {
  live = $state.raw<Live>(fresh(''));
  private stopper = new AbortController();
  private beganAt = performance.now();

  constructor(id: string, onEnd: (live: Live) => void = () => {}) {
    this.live = fresh(id);
    void watchRun(
      id,
      ({ kind, data }) => {
        this.live = advance(this.live, kind, data, (performance.now() - this.beganAt) / 1000);
        if (this.live.phase === 'over') onEnd(this.live);
      },
      this.stopper.signal,
    );
  }

  get elapsedS() {
    return (performance.now() - this.beganAt) / 1000;
  }

  stop() {
    this.stopper.abort();
  }

  async cancel() {
    await post(`/v1/runs/${this.live.id}/cancel`, {}).catch(() => {});
  }
}
