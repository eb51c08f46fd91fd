// What changes something. Offered only where the router has an admin token, which it then wanted for reading, too.

export class Actions {
  /** `done()` is called after each. */
  constructor(done) {
    this.done = done;
  }

  ofNode() {
    return [];
  }

  ofPrefix() {
    return [];
  }
}
