// Light, dark, or as the system has it.
type Choice = 'auto' | 'light' | 'dark';

class Theme {
  choice = $state<Choice>('auto');

  constructor() {
    const kept = localStorage.getItem('dirigent.theme');
    if (kept === 'light' || kept === 'dark') this.set(kept);
  }

  get said() {
    return this.choice === 'auto' ? 'as the system' : this.choice;
  }

  next() {
    this.set(this.choice === 'auto' ? 'light' : this.choice === 'light' ? 'dark' : 'auto');
  }

  private set(choice: Choice) {
    this.choice = choice;
    if (choice === 'auto') {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem('dirigent.theme');
    } else {
      document.documentElement.dataset.theme = choice;
      localStorage.setItem('dirigent.theme', choice);
    }
  }
}

export const theme = new Theme();
