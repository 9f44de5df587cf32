// Browsers start no workers for pages that are opened from the disk, and the search of the site is one.
// There its script runs in a hidden frame instead, which passes messages on as a worker does.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.ready = new Promise((resolve, reject) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = url
          script.onload = resolve
          script.onerror = reject
          inside.document.body.append(script)
        }
      })
      document.body.append(this.frame)
    }

    async postMessage(data) {
      await this.ready
      const inside = this.frame.contentWindow
      inside.dispatchEvent(new inside.MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
