// The search of pages that are opened as files: browsers start no Worker there, so its program runs in a hidden frame.
(() => {
  if (location.protocol !== "file:") return;

  class FramedWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      // What a worker has and a window lacks: messages to its maker, and scripts that are loaded one after the other.
      inside.postMessage = (data) => this.hear(data);
      inside.importScripts = async (...urls) => {
        for (const each of urls) await load(this.frame.contentDocument, each);
      };
      this.ready = load(this.frame.contentDocument, url);
    }

    hear(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  }

  function load(page, url) {
    return new Promise((done, failed) => {
      const script = page.createElement("script");
      script.src = url;
      script.onload = done;
      script.onerror = failed;
      page.head.append(script);
    });
  }

  window.Worker = FramedWorker;
})();
